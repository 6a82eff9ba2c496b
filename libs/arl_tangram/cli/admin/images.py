"""`images`: images on nodes, and requests to pull and remove them."""

from pathlib import Path
from typing import Annotated

import typer

from arl_tangram.cli.client import connected_client
from arl_tangram.cli.completion import complete_pool
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import FormatOption, OutputFormat, print_model, print_rows, stdout
from arl_wire.admin.images import ImageRequestsResponse, NodeImage

__all__ = ["register"]

HEADINGS = ("image", "node", "state", "MiB", "pulled MiB", "unpacked MiB", "message")

group = typer.Typer(no_args_is_help=True, help="Show, pull and remove images on nodes.")
ImagesArgument = Annotated[list[str], typer.Argument(help="References of images, such as `python:3.12`.")]
PoolOption = Annotated[
    str | None, typer.Option(help="Pool of the nodes.", autocompletion=complete_pool, show_default="all pools")
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(group, name="images", rich_help_panel="Operate")


@group.command("list")
def list_images(directory: DirOption, output: FormatOption = OutputFormat.TEXT) -> None:
    """List the images of all nodes, and pulls in progress."""
    with connected_client(directory) as tangram:
        found = tangram.images()
    if output is OutputFormat.JSON:
        print_model(found)
    else:
        empty = "No node has an image. Pull one: tangram images pull python:3.12"
        print_rows(HEADINGS, map(_row, found.items), empty=empty)


@group.command()
def pull(
    directory: DirOption, images: ImagesArgument, pool: PoolOption = None, output: FormatOption = OutputFormat.TEXT
) -> None:
    """Request pulls of images on all nodes, or on those of a pool."""
    with connected_client(directory) as tangram:
        _print_requests(tangram.pull_images(images, pool=pool), output)


@group.command()
def prefetch(
    directory: DirOption,
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="File with one reference on each line.")],
    pool: PoolOption = None,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Request pulls of the images that a file lists. Empty lines and lines with `#` are skipped."""
    lines = (line.strip() for line in file.read_text().splitlines())
    images = [line for line in lines if line and not line.startswith("#")]
    with connected_client(directory) as tangram:
        _print_requests(tangram.pull_images(images, pool=pool), output)


@group.command()
def remove(directory: DirOption, images: ImagesArgument, output: FormatOption = OutputFormat.TEXT) -> None:
    """Request the removal of images from all nodes. Images that environments use stay."""
    with connected_client(directory) as tangram:
        _print_requests(tangram.remove_images(images), output)


def _print_requests(requested: ImageRequestsResponse, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_model(requested)
    else:
        stdout.print(f"{requested.count} requests to nodes; see: tangram images list", markup=False)


def _row(image: NodeImage) -> tuple[str, ...]:
    sizes = (image.bytes, image.bytes_done, image.unpacked_bytes)
    message = image.message or image.reason or ""
    return (image.name, image.node, image.state, *map(_mib, sizes), message)


def _mib(size: int | None) -> str:
    return f"{size / (1 << 20):.1f}" if size is not None else "-"
