"""`ports`: forward a port of this machine to a server inside an environment, and sign URLs of ports."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit
from uuid import UUID

import typer

from arl_tangram.cli.client import connected_client
from arl_tangram.cli.completion import complete_environment
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import stderr, stdout
from arl_tangram.transport.connection import ConnectionConfig, resolve_connection
from arl_wire.environments.environment import MAX_URL_LIFETIME_S
from arl_wire.errors import ProblemDetails, Unavailable, error_from_problem

__all__ = ["register"]

CHUNK_BYTES = 64 << 10
MAX_PROBLEM_BYTES = 64 << 10
EnvironmentArgument = Annotated[UUID, typer.Argument(help="Id of an environment.", autocompletion=complete_environment)]
PortArgument = Annotated[int, typer.Argument(help="Port inside the environment.", min=1, max=65535)]

group = typer.Typer(no_args_is_help=True, help="Reach servers inside environments.")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(group, name="ports", rich_help_panel="Run")


@group.command()
def url(
    directory: DirOption,
    id: EnvironmentArgument,
    port: PortArgument,
    lifetime_s: Annotated[int, typer.Option(help="Seconds until the URL ends.", min=1, max=MAX_URL_LIFETIME_S)] = 3600,
) -> None:
    """Print a URL of a port that needs no API key. Everyone who has it can use the port."""
    with connected_client(directory) as tangram:
        _print_line(tangram.port_url(id, port, lifetime_s=lifetime_s))


@group.command()
def forward(
    directory: DirOption,
    id: EnvironmentArgument,
    port: PortArgument,
    local: Annotated[
        int | None,
        typer.Option(help="Port of 127.0.0.1; 0 means any free port.", show_default="as inside", min=0, max=65535),
    ] = None,
) -> None:
    """Forward connections to a port of this machine to a port of an environment, until Ctrl-C."""
    with connected_client(directory) as tangram:
        tangram.get_environment(id)  # an error now is better than one for each connection
    forwarding = _PortForwarding(resolve_connection(directory=Path(directory)), id, port)
    with suppress(KeyboardInterrupt):
        asyncio.run(forwarding.serve(port if local is None else local))


class _PortForwarding:
    """A server on this machine whose connections continue inside an environment."""

    def __init__(self, connection: ConnectionConfig, environment: UUID, port: int) -> None:
        self._connection, self._environment, self._port = connection, environment, port

    async def serve(self, local: int) -> None:
        """Listen, and print the address."""
        server = await asyncio.start_server(self._forward, "127.0.0.1", local)
        address, port = server.sockets[0].getsockname()
        _print_line(f"{address}:{port}")
        async with server:
            await server.serve_forever()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            remote_reader, remote_writer = await self._connect()
            try:
                await asyncio.gather(_copy(reader, remote_writer), _copy(remote_reader, writer))
            finally:
                remote_writer.close()
        except Exception as error:  # noqa: BLE001 - one connection fails, and the others continue
            stderr.print(f"connection failed: {error}", markup=False)
        finally:
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        url = urlsplit(self._connection.url)
        is_tls = url.scheme == "https"
        reader, writer = await asyncio.open_connection(url.hostname, url.port or (443 if is_tls else 80), ssl=is_tls)
        fields = {"host": url.netloc, "connection": "upgrade", "upgrade": "tcp"}
        fields["authorization"] = f"Bearer {self._connection.api_key}"
        path = f"{url.path}/v1/environments/{self._environment}/ports/{self._port}"
        lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
        writer.write("\r\n".join(lines).encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if head.split(b" ")[1] == b"101":
            return reader, writer
        content = await reader.read(MAX_PROBLEM_BYTES)
        writer.close()
        try:
            raise error_from_problem(ProblemDetails.model_validate_json(content))
        except ValueError:
            raise Unavailable(f"{self._connection.url} does not forward connections") from None


def _print_line(text: str) -> None:
    stdout.print(text, markup=False, highlight=False, soft_wrap=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    with suppress(OSError, NotImplementedError):  # TLS cannot end one direction
        writer.write_eof()
