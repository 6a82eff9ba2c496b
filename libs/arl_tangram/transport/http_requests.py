"""Execution of one request over HTTP. Archives are read from files and written to files."""

import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, aclosing, closing
from pathlib import Path
from typing import Any

import httpx

from arl_tangram.operations import SdkRequest, SdkResponse
from arl_wire.cells import MISSING_CELLS_HEADER

__all__ = ["send", "send_async"]

CHUNK_BYTES = 256 << 10

log = logging.getLogger(__name__)


def send(http: httpx.Client, call: SdkRequest) -> SdkResponse:
    begun = time.monotonic()
    try:
        with ExitStack() as opened:
            content = opened.enter_context(call.upload.open("rb")) if call.upload is not None else _encode_body(call)
            response = http.send(_build_request(http, call, content), stream=True)
            opened.enter_context(closing(response))
            if call.download is not None and response.is_success:
                with call.download.open("wb") as target:
                    for chunk in response.iter_raw():
                        target.write(chunk)
            else:
                response.read()
            return _to_response(response, call, time.monotonic() - begun)
    except httpx.TransportError as error:
        return _connection_failed_response(error, time.monotonic() - begun)


async def send_async(http: httpx.AsyncClient, call: SdkRequest) -> SdkResponse:
    begun = time.monotonic()
    try:
        async with AsyncExitStack() as opened:
            content: Any = _encode_body(call)
            if call.upload is not None:
                content = await opened.enter_async_context(aclosing(_read_chunks(call.upload)))
            response = await http.send(_build_request(http, call, content), stream=True)
            opened.push_async_callback(response.aclose)
            if call.download is not None and response.is_success:
                with call.download.open("wb") as target:
                    async for chunk in response.aiter_raw():
                        target.write(chunk)
            else:
                await response.aread()
            return _to_response(response, call, time.monotonic() - begun)
    except httpx.TransportError as error:
        return _connection_failed_response(error, time.monotonic() - begun)


async def _read_chunks(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _encode_body(call: SdkRequest) -> str | None:
    if call.body is None:
        return None
    # The server chooses the defaults of unset fields.
    return call.body.model_dump_json(exclude_none=not call.send_null, exclude_unset=True)


def _build_request(http: httpx.Client | httpx.AsyncClient, call: SdkRequest, content: Any) -> httpx.Request:
    headers = dict(call.headers or {})
    if call.body is not None:
        headers["content-type"] = "application/json"
    return http.build_request(
        call.method, call.path, params=call.query, headers=headers, content=content, timeout=call.timeout_s
    )


def _to_response(response: httpx.Response, call: SdkRequest, elapsed_s: float) -> SdkResponse:
    retry_after = response.headers.get("retry-after", "")
    if call.method == "GET" and (missing := response.headers.get(MISSING_CELLS_HEADER)):
        # Without a configured logger, Python prints the text on standard error.
        log.warning("cell %s does not answer; its items are missing", missing)
    return SdkResponse(
        response.status_code,
        b"" if call.download is not None and response.is_success else response.content,
        retry_after_s=float(retry_after) if retry_after.isdigit() else None,
        elapsed_s=elapsed_s,
    )


def _connection_failed_response(error: httpx.TransportError, elapsed_s: float) -> SdkResponse:
    return SdkResponse(0, f"{type(error).__name__}: {error}".encode(), elapsed_s=elapsed_s)
