"""Test how a call handles malformed and unusual endpoint responses, byte by byte."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from arl_api.calls import EndpointCall
from arl_api.sender import EndpointSender, RequestResult
from arl_api.settings import EndpointSettings
from arl_api.verdicts import CallVerdict
from arl_core.domain.model import Fence
from arl_store.values import uuid7

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
TEXT = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n"
PACKED = gzip.compress(b"found " * 100, mtime=0)
KEY = "sk-0123456789abcdef"


def a_call(**fields: Any) -> EndpointCall:
    basic = {"fence": Fence(uuid7(), 1), "endpoint": "e", "method": "GET", "path": "", "query": {}, "raw_query": ""}
    return EndpointCall(**{**basic, "headers": {}, "body": b"", "idempotent": False, "timeout_s": 5.0, **fields})


@asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[str]:
    """Serve connections on a new local port and yield its URL."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@asynccontextmanager
async def serving(serve: Serve, **settings: Any) -> AsyncIterator[EndpointSender]:
    async with listening(serve) as url:
        sender = EndpointSender(EndpointSettings(url=url, **settings))
        try:
            yield sender
        finally:
            await sender.close()


async def heard(answer: bytes, *, call: EndpointCall | None = None, **settings: Any) -> RequestResult:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()

    async with serving(serve, **settings) as sender, asyncio.timeout(5):
        return await sender.send(call or a_call())


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 999 Denied\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 20\r\n\r\n" + PACKED[:20],
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nplain",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 5\r\n\r\nplain",
    ],
    ids=("nothing", "another_protocol", "short", "bad_chunk", "bad_status", "gzip_cut", "no_gzip", "brotli"),
)
async def test_incomplete_or_malformed_response_is_a_lost_connection(answer: bytes) -> None:
    found = await heard(answer)
    assert (found.verdict, found.response) == (CallVerdict.CONNECTION_LOST, None)


async def test_unrequested_gzip_response_is_decompressed() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(PACKED)
    found = await heard(head + PACKED)
    assert found.response is not None
    assert (found.response.body, found.response.headers) == (b"found " * 100, {})


@pytest.mark.parametrize(
    ("packing", "packed"),
    [
        ("gzip", gzip.compress(b"first ", mtime=0) + gzip.compress(b"second", mtime=0) + b"\0\0"),
        ("deflate", zlib.compress(b"first second")),
        ("deflate", zlib.compress(b"first second")[2:-4]),  # as some servers have it
    ],
    ids=("members", "zlib", "raw"),
)
async def test_every_compressed_response_format_is_decompressed_completely(packing: str, packed: bytes) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {packing}\r\nContent-Length: {len(packed)}\r\n\r\n"
    found = await heard(head.encode() + packed)
    assert found.response is not None
    assert found.response.body == b"first second"


async def test_response_longer_than_max_body_is_truncated() -> None:
    long = b"x" * ((16 << 20) + 5)
    found = await heard(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(long) + long, max_body_kib=16 << 10)
    assert found.response is not None
    assert found.response.total_bytes > len(found.response.body)


async def test_caller_cannot_override_query_parameters_of_the_operator() -> None:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(TEXT + b"\r\nfound")
        await writer.drain()

    async with serving(serve, query={"safe": "strict"}, secret_query={"key": KEY}) as sender:
        await sender.send(a_call(raw_query="safe=off&%6bey=mine&q=a%20b&flag"))
    assert asked[0].startswith(b"GET /?q=a%20b&flag&safe=strict&key=" + KEY.encode() + b" HTTP/1.1")


async def test_decompression_bomb_is_truncated() -> None:
    bomb = gzip.compress(b"\0" * (64 << 20))
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    found = await heard(head + bomb)
    assert found.response is not None
    assert len(found.response.body) == 1 << 20
    assert 16 << 20 <= found.response.total_bytes < 17 << 20


async def test_response_headers_are_encoded_as_ascii_and_merged_by_name() -> None:
    odd = "X-Title: 日本\r\nLink: <a>\r\nLink: <b>\r\nX-Bell: a\x07b\r\nSet-Cookie: s=1\r\n".encode()
    found = await heard(TEXT + odd + b"\r\nfound")
    if found.response is None:  # a parser may take a bell for the end of it
        found = await heard(TEXT + odd.replace(b"\x07", b"") + b"\r\nfound")
    assert found.response is not None
    assert found.response.headers["x-title"] == "%E6%97%A5%E6%9C%AC"
    assert found.response.headers["link"] == "<a>, <b>"
    assert "set-cookie" not in found.response.headers
    assert all(" " <= each <= "~" for value in found.response.headers.values() for each in value)


async def test_invalid_retry_after_date_does_not_fail_the_call() -> None:
    odd = b"Retry-After: Mon, 01 Jan 99999999999999999999 00:00:00 GMT\r\n"
    assert (await heard(TEXT + odd + b"\r\nfound")).verdict is CallVerdict.ANSWERED


async def test_endpoint_key_is_redacted_from_full_and_truncated_responses() -> None:
    said = f"you are {KEY}".encode()
    found = await heard(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(said) + said, key=KEY)
    assert found.response is not None
    assert (found.response.body, found.response.total_bytes) == (b"you are [hidden]", len(b"you are [hidden]"))
    long = KEY.encode() * 40 + b"." * ((1 << 10) - 40 * len(KEY) - 10) + KEY.encode()
    found = await heard(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(long) + long, key=KEY, max_body_kib=1)
    assert found.response is not None
    assert found.response.body.endswith(b"...")
    assert found.response.total_bytes == len(long)


async def test_response_without_secrets_is_not_changed() -> None:
    said = b'{"api":"2024-06-01","agent":"acme research agent"}'
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(said) + said
    own = {"User-Agent": "acme research agent", "Accept": "application/json"}
    found = await heard(answer, key=KEY, headers=own, query={"api-version": "2024-06-01"})
    assert found.response is not None
    assert (found.response.body, found.response.headers["content-type"]) == (said, "application/json")


@pytest.mark.parametrize("method", ["GET", "PUT", "POST"])
async def test_request_on_a_closed_keepalive_connection_is_not_resent(method: str) -> None:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer once with keep-alive, then close the connection on the next request."""
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(TEXT + b"\r\nfound")
        await writer.drain()
        asked.append(await reader.readuntil(b"\r\n\r\n"))

    async with serving(serve) as sender:
        first, second = [await sender.send(a_call(method=method)) for _ in range(2)]
    assert (first.verdict, second.verdict, len(asked)) == (CallVerdict.ANSWERED, CallVerdict.CONNECTION_LOST, 2)


async def test_connection_failure_message_does_not_contain_the_address() -> None:
    sender = EndpointSender(EndpointSettings(url="http://127.0.0.1:9"))
    found = await sender.send(a_call())
    await sender.close()
    assert (found.verdict, found.message) == (
        CallVerdict.UNREACHABLE,
        "the endpoint is not reachable: connection refused",
    )


async def test_sender_ignores_netrc_and_uses_proxy_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    netrc = tmp_path / ".netrc"
    netrc.write_text("default login somebody password else")
    netrc.chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(TEXT + b"\r\nfound")
        await writer.drain()

    async with listening(serve) as proxy:
        monkeypatch.setenv("http_proxy", proxy)
        sender = EndpointSender(EndpointSettings(url="http://search.example"))
        found = await sender.send(a_call(path="find"))
        await sender.close()
    assert found.verdict is CallVerdict.ANSWERED
    assert asked[0].startswith(b"GET http://search.example/find HTTP/1.1")
    assert b"authorization" not in asked[0].lower()


async def endless(part: bytes, call: EndpointCall | None = None) -> RequestResult:
    """Return the result of a response that never ends; a task of the same loop must run all the while."""
    turns = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with suppress(OSError):
            while not writer.is_closing():
                writer.write(part)
                await writer.drain()

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    try:
        async with serving(serve) as sender, asyncio.timeout(20):
            result = await sender.send(call or a_call())
    finally:
        counting.cancel()
    assert turns > 10
    return result


async def test_endless_informational_responses_are_a_lost_connection() -> None:
    result = await endless(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)
    assert (result.verdict, "informational" in result.message) == (CallVerdict.CONNECTION_LOST, True)


async def test_few_informational_responses_precede_the_response() -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
    result = await heard(hints * 3 + TEXT + b"\r\nfound")
    assert result.response is not None
    assert (result.verdict, result.response.body) == (CallVerdict.ANSWERED, b"found")


async def test_endless_empty_gzip_members_are_refused() -> None:
    member = gzip.compress(b"", mtime=0)
    body = b"%x\r\n%s\r\n" % (len(member) * 3000, member * 3000)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
    result = await heard(head + body * 20)
    assert (result.verdict, "members" in result.message) == (CallVerdict.CONNECTION_LOST, True)


async def test_response_with_long_and_many_headers_passes() -> None:
    headers = b"".join(b"x-h%d: v\r\n" % each for each in range(300)) + b"x-long: " + b"a" * 40_000 + b"\r\n"
    result = await heard(b"HTTP/1.1 200 OK\r\n" + headers + b"Content-Length: 2\r\n\r\nok")
    assert result.response is not None
    assert (result.verdict, result.response.body) == (CallVerdict.ANSWERED, b"ok")
