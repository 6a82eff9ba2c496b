"""envd's HTTP routes: contents of files in parts, and the check that a sandbox runs."""

import asyncio
import zlib
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from arl_gateway.compat.e2b.access import ENVD_PREFIX, PORTS_PREFIX
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
async def read_file(channel: ChannelDep, path: str = "") -> Response:
    """Return the content of a file."""
    first = await _read_part(channel, path, 0)
    size = first[1]
    headers = {"content-length": str(size)}
    return StreamingResponse(
        _file_content(channel, path, first[0], size), media_type="application/octet-stream", headers=headers
    )


@router.post(f"{ENVD_PREFIX}/files")
async def write_files(request: Request, channel: ChannelDep, path: str | None = None) -> Response:
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
    return JSONResponse([await _write_file(channel, name, content, metadata) for name, content in files])


@router.api_route(PORTS_PREFIX + "/{port}/{rest:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"])
async def refuse_port(port: int, sandbox: SandboxDep) -> Response:
    """Refuse ports other than envd's."""
    raise not_supported(f"port {port} of a sandbox")


async def _read_part(channel: SandboxChannel, path: str, offset: int) -> tuple[bytes, int]:
    found = await channel.call("read", {"path": path, "offset": offset, "limit": PART_BYTES})
    return b64decode(found["data"]), found["size"]


async def _file_content(channel: SandboxChannel, path: str, first: bytes, size: int) -> AsyncIterator[bytes]:
    """Yield a file in parts. A file that shrinks meanwhile ends the response early."""
    if first:
        yield first
    at = len(first)
    while at < size:
        part = (await _read_part(channel, path, at))[0][: size - at]
        if not part:
            return
        yield part
        at += len(part)


async def _write_file(channel: SandboxChannel, path: str, content: bytes, metadata: dict[str, str]) -> dict[str, Any]:
    first = {"path": path, "offset": 0, "data": b64encode(content[:PART_BYTES]).decode(), "metadata": metadata}
    entry: dict[str, Any] = (await channel.call("write", first))["entry"]
    offsets = list(range(PART_BYTES, len(content), PART_BYTES))
    for at in range(0, len(offsets), CONCURRENT_PARTS):
        parts = offsets[at : at + CONCURRENT_PARTS]
        await asyncio.gather(*(_write_part(channel, path, content, part) for part in parts))
    found = {"name": entry["name"], "path": entry["path"], "type": "file"}
    return {**found, "metadata": metadata} if metadata else found


async def _write_part(channel: SandboxChannel, path: str, content: bytes, offset: int) -> None:
    data = b64encode(content[offset : offset + PART_BYTES]).decode()
    await channel.call("write", {"path": path, "offset": offset, "data": data})


def _decompress(body: bytes) -> bytes:
    reader = zlib.decompressobj(wbits=31)
    try:
        content = reader.decompress(body, MAX_FILE_BYTES)
    except zlib.error:
        raise GuestCallError("invalid_argument", "the body is not gzip") from None
    if reader.unconsumed_tail:
        raise GuestCallError("resource_exhausted", f"the body has more than {MAX_FILE_BYTES >> 20} MiB")
    return content
