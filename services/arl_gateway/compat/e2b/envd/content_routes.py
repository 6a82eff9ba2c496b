"""envd's HTTP routes: contents of files in parts, and the check that a sandbox runs."""

import asyncio
import zlib
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from arl_gateway.compat.e2b.access import ENVD_PREFIX, INTERPRETER_PREFIX
from arl_gateway.compat.e2b.channels import SandboxChannel
from arl_gateway.compat.e2b.envd.process_routes import ChannelDep, SandboxDep
from arl_gateway.compat.e2b.envd.upload_form import parse_parts
from arl_gateway.compat.e2b.errors import ControlRoute, GuestCallError, not_supported

__all__ = ["router"]

PART_BYTES = 480 << 10
"""Bytes of a file in one request. As base64 they fit into the input and the output of an action."""
CONCURRENT_PARTS = 8
MAX_FILE_BYTES = 256 << 20
METADATA_PREFIX = "x-metadata-"

router = APIRouter(route_class=ControlRoute, include_in_schema=False)


@router.get(f"{ENVD_PREFIX}/health")
async def check_health(sandbox: SandboxDep) -> Response:
    """Report that the sandbox runs."""
    return Response(status_code=204)


@router.get(f"{ENVD_PREFIX}/files")
async def read_file(channel: ChannelDep, path: str = "", username: str = "") -> Response:
    """Return the content of a file."""
    file = SandboxFile(channel, path, username)
    first = await _read_part(file, 0)
    size = first[1]
    headers = {"content-length": str(size)}
    return StreamingResponse(
        _file_content(file, first[0], size), media_type="application/octet-stream", headers=headers
    )


@router.post(f"{ENVD_PREFIX}/files")
async def write_files(request: Request, channel: ChannelDep, path: str | None = None, username: str = "") -> Response:
    """Write files from a form with a part for each, or one file from the body."""
    body = await request.body()
    if request.headers.get("content-encoding") == "gzip":
        body = _decompress(body)
    kind = request.headers.get("content-type", "")
    if kind.startswith("multipart/form-data"):
        files = [(path or name, content) for name, content in parse_parts(kind, body)]
    elif path is not None:
        files = [(path, body)]
    else:
        raise GuestCallError("invalid_argument", "query.path is missing")
    metadata = {
        name.removeprefix(METADATA_PREFIX): value
        for name, value in request.headers.items()
        if name.startswith(METADATA_PREFIX)
    }
    written = [(SandboxFile(channel, name, username), content) for name, content in files]
    return JSONResponse([await _write_file(file, content, metadata) for file, content in written])


@router.api_route(f"{INTERPRETER_PREFIX}/{{rest:path}}", methods=["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"])
async def refuse_interpreter_path(rest: str, sandbox: SandboxDep) -> Response:
    """Refuse other paths of the code interpreter."""
    raise not_supported(f"/{rest[:64]} of the code interpreter")


@dataclass(frozen=True, slots=True)
class SandboxFile:
    """A path in a sandbox and the user of the access."""

    channel: SandboxChannel
    path: str
    user: str

    async def call(self, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Perform an operation on the file. Raises GuestCallError."""
        return await self.channel.call(operation, {"path": self.path, "user": self.user, **arguments})


async def _read_part(file: SandboxFile, offset: int) -> tuple[bytes, int]:
    found = await file.call("read", {"offset": offset, "limit": PART_BYTES})
    return b64decode(found["data"]), found["size"]


async def _file_content(file: SandboxFile, first: bytes, size: int) -> AsyncIterator[bytes]:
    """Yield a file in parts. A file that shrinks meanwhile ends the response early."""
    if first:
        yield first
    at = len(first)
    while at < size:
        part = (await _read_part(file, at))[0][: size - at]
        if not part:
            return
        yield part
        at += len(part)


async def _write_file(file: SandboxFile, content: bytes, metadata: dict[str, str]) -> dict[str, Any]:
    first = {"offset": 0, "data": b64encode(content[:PART_BYTES]).decode(), "metadata": metadata}
    entry: dict[str, Any] = (await file.call("write", first))["entry"]
    offsets = list(range(PART_BYTES, len(content), PART_BYTES))
    for at in range(0, len(offsets), CONCURRENT_PARTS):
        parts = offsets[at : at + CONCURRENT_PARTS]
        await asyncio.gather(*(_write_part(file, content, part) for part in parts))
    found = {"name": entry["name"], "path": entry["path"], "type": "file"}
    return {**found, "metadata": metadata} if metadata else found


async def _write_part(file: SandboxFile, content: bytes, offset: int) -> None:
    data = b64encode(content[offset : offset + PART_BYTES]).decode()
    await file.call("write", {"offset": offset, "data": data})


def _decompress(body: bytes) -> bytes:
    reader = zlib.decompressobj(wbits=31)
    try:
        content = reader.decompress(body, MAX_FILE_BYTES)
    except zlib.error:
        raise GuestCallError("invalid_argument", "the body is not gzip") from None
    if reader.unconsumed_tail:
        raise GuestCallError("resource_exhausted", f"the body has more than {MAX_FILE_BYTES >> 20} MiB")
    return content
