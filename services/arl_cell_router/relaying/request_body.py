"""Request bodies that name a cell. They are read and parsed; all others are forwarded while they arrive."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from starlette.requests import Request

from arl_cell_router.cells.cell_links import RelayedHead
from arl_kit.http_server.json_limits import JsonLimitExceeded, JsonScanner, JsonTooDeep

__all__ = ["has_credentials", "json_head", "read_json", "to_json"]

OFFLOAD_BYTES = 1 << 20
"""Bodies above this size in bytes are parsed in a thread, so that other requests are not delayed."""
CREDENTIALS = ("authorization", "x-api-key")


def has_credentials(request: Request) -> bool:
    """Return True if the request has a key. Bodies without one are never parsed: a gateway refuses them."""
    return any(name in request.headers for name in CREDENTIALS)


async def read_json(request: Request) -> tuple[bytes, Any]:
    """Return the body, and its value or None.

    None stands for a body that a gateway refuses: no JSON, another content type, or one above its limits.
    """
    body = await request.body()
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not (given == "application/json" or (given.startswith("application/") and given.endswith("+json"))):
        return body, None
    return body, await asyncio.to_thread(_parse, body) if len(body) > OFFLOAD_BYTES else _parse(body)


def json_head(head: RelayedHead, **changed: Any) -> RelayedHead:
    """Return the head of a request with a new JSON body. `changed` replaces further fields."""
    kept = [(name, value) for name, value in head.headers if name not in ("content-length", "content-type")]
    return replace(head, headers=[*kept, ("content-type", "application/json")], **changed)


def to_json(value: Mapping[str, Any]) -> bytes:
    """Return the value as a JSON document."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="surrogatepass")


def _parse(body: bytes) -> Any:
    try:
        JsonScanner().feed(body)
        return json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, JsonLimitExceeded, JsonTooDeep, RecursionError):
        return None


def _refuse_constant(name: str) -> None:
    """Refuse NaN and infinities, which JSON does not have."""
    raise ValueError(name)
