"""`templates`: file trees from which environments of this node can start, in addition to its system directories."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from arl_tangram.cli.client import connected_client
from arl_tangram.cli.completion import complete_template
from arl_tangram.cli.local_state import DirOption, LocalState
from arl_tangram.cli.output import (
    EXIT_FAILED,
    EXIT_USAGE,
    FormatOption,
    OutputFormat,
    fail,
    print_json,
    print_rows,
    stderr,
    stdout,
)
from arl_wire.admin.nodes import NodeInfo

__all__ = ["register"]

LISTING_TIMEOUT_S = 20.0
LISTING_POLL_S = 0.25

group = typer.Typer(no_args_is_help=True, help="Import images that environments on this machine start from.")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(group, name="templates", rich_help_panel="Operate")


@group.command("import")
def import_template(
    directory: DirOption,
    path: Annotated[
        Path,
        typer.Argument(help="A root directory, an OCI image layout (directory or tar), or a `docker save` archive."),
    ],
    name: Annotated[str, typer.Option(help="Name of the template.")],
    max_mib: Annotated[int, typer.Option(min=1, help="Maximum unpacked size in MiB.")] = 32 << 10,
    max_members: Annotated[int, typer.Option(min=1, help="Maximum number of files.")] = 2_000_000,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Unpack an image on this machine. Environments created from now on can start from it."""
    (made,) = _run_template_store(directory, "import", str(path.absolute()), name, str(max_mib), str(max_members))
    seen = _wait_until_listed(directory, made)
    if output is OutputFormat.JSON:
        print_json({**made, "usable": seen})
        return
    stdout.print(_format_template(made), markup=False)
    if made["left_out"]:
        stderr.print(f"{made['left_out']} devices and pipes were skipped")
    if not seen:
        is_up = LocalState(directory).supervisor_pid() is not None
        hint = "the node does not list the template yet; check the system: tangram status"
        stderr.print(hint if is_up else "no system runs here; start it to use the template: tangram up", markup=False)


@group.command("list")
def list_templates(directory: DirOption, output: FormatOption = OutputFormat.TEXT) -> None:
    """List the templates imported on this machine. `tangram doctor` lists those of every node."""
    found = _run_template_store(directory, "list")
    if output is OutputFormat.JSON:
        print_json(found)
        return
    rows = (
        (
            each["name"],
            each["digest"][:19],
            f"{each['bytes'] / (1 << 20):.1f}",
            str(len(each["layers"])),
            each["source"],
        )
        for each in found
    )
    empty = "No template is imported. Import one: tangram templates import IMAGE --name NAME"
    print_rows(("template", "digest", "MiB", "layers", "source"), rows, empty=empty)


@group.command()
def remove(
    directory: DirOption,
    name: Annotated[str, typer.Argument(help="Name of a template.", autocompletion=complete_template)],
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Remove a template and the layers that only it uses. Refused while a live environment started from it."""
    removed = _run_template_store(directory, "remove", name)
    # A template with an unreadable record has no other fields.
    if output is OutputFormat.JSON:
        print_json(removed[0] if removed else {"name": name})
    else:
        stdout.print(f"removed {_format_template(removed[0]) if removed else name}", markup=False)


def _run_template_store(directory: Path, *arguments: str) -> list[dict[str, Any]]:
    if importlib.util.find_spec("arl_cpu") is None:
        fail("templates need a node: pip install arl-tangram-server", EXIT_USAGE)
    store = os.environ.get("TANGRAM_TEMPLATES_DIR") or str(directory.absolute() / "templates")
    command = [sys.executable, "-P", "-m", "arl_cpu.templates", store, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        fail(done.stderr.strip(), EXIT_FAILED)
    if done.stderr:
        stderr.print(done.stderr.strip(), markup=False)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def _wait_until_listed(directory: Path, template: dict[str, Any]) -> bool:
    """Wait until the node lists the template. Return False on a timeout, or if no system is up here."""
    if LocalState(directory).supervisor_pid() is None:
        return False
    deadline = time.monotonic() + LISTING_TIMEOUT_S
    with connected_client(directory) as tangram:
        while not _is_listed(tangram.nodes().items, template):
            if time.monotonic() > deadline:
                return False
            time.sleep(LISTING_POLL_S)
    return True


def _is_listed(nodes: Sequence[NodeInfo], template: dict[str, Any]) -> bool:
    ours = [node for node in nodes if node.name == socket.gethostname()]
    return any(
        (template["name"], template["digest"]) == (each.name, each.digest) for node in ours for each in node.templates
    )


def _format_template(template: dict[str, Any]) -> str:
    size = f"{template['bytes'] / (1 << 20):.1f} MiB in {len(template['layers'])} layers"
    return f"{template['name']}  {template['digest'][:19]}  {size}  from {template['source']}"
