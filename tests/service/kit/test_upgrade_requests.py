"""Test that requests which offer another protocol are served by HTTP/1.1, with their bodies."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from arl_kit.http_server.connection_limits import ConnectionLimits, limited_protocol

LATEST_S = 20.0
HTTP_2 = b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\nUpgrade: h2c\r\n"
WEBSOCKET = b"Upgrade: websocket\r\nConnection: keep-alive\r\nConnection: Upgrade\r\n"
BODY = b'{"a": 1}'
SIZED = b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n3\r\n%b\r\n5\r\n%b\r\n0\r\n\r\n" % (BODY[:3], BODY[3:])


async def echo(request: Request) -> Response:
    """Return the method, the query and the body in one line."""
    content = (await request.body()).decode()
    return PlainTextResponse(f"<{request.method} {request.url.query} {content}>")


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    app = Starlette(routes=[Route("/", echo, methods=["GET", "POST"])])
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, http=limited_protocol(ConnectionLimits()), log_config=None))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()
        finally:
            server.should_exit = True
            thread.join()


@contextlib.contextmanager
def connected(address: tuple[str, int]) -> Iterator[socket.socket]:
    with socket.create_connection(address, timeout=LATEST_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection


def read_until(connection: socket.socket, end: bytes, count: int = 1) -> bytes:
    content = b""
    while content.count(end) < count:
        part = connection.recv(1 << 16)
        assert part, f"the server closed the connection after {content!r}"
        content += part
    return content


@pytest.mark.parametrize("offer", [HTTP_2, WEBSOCKET])
@pytest.mark.parametrize("rest", [SIZED, CHUNKED])
def test_request_with_an_offer_is_served_with_its_body(address: tuple[str, int], offer: bytes, rest: bytes) -> None:
    with connected(address) as connection:
        for query in (b"1", b"2"):
            connection.sendall(b"POST /?%b HTTP/1.1\r\nHost: a\r\n%b%b" % (query, offer, rest))
            answer = read_until(connection, b">")
            assert answer.startswith(b"HTTP/1.1 200")
            assert answer.endswith(b"<POST %b %b>" % (query, BODY))


def test_request_with_an_offer_and_without_body_is_served(address: tuple[str, int]) -> None:
    with connected(address) as connection:
        connection.sendall(b"GET /?q HTTP/1.1\r\nHost: a\r\n%b\r\n" % HTTP_2)
        assert read_until(connection, b">").endswith(b"<GET q >")


@pytest.mark.parametrize("rest", [SIZED, CHUNKED, b"\r\n"])
@pytest.mark.parametrize(
    ("version", "offer"),
    [
        (b"1.1", b"Connection: close\r\nUpgrade: h2c\r\n"),
        (b"1.1", b"Connection: close, upgrade\r\nUpgrade: h2c\r\n"),
        (b"1.0", HTTP_2),
        (b"1.0", b"Connection: upgrade\r\nUpgrade: websocket\r\n"),
    ],
)
def test_last_request_of_a_connection_with_an_offer_is_served(
    address: tuple[str, int], version: bytes, offer: bytes, rest: bytes
) -> None:
    body = b"" if rest == b"\r\n" else BODY
    with connected(address) as connection:
        connection.sendall(b"POST /?q HTTP/%b\r\nHost: a\r\n%b%b" % (version, offer, rest))
        assert read_until(connection, b">").endswith(b"<POST q %b>" % body)
        assert connection.recv(1) == b"", "the server closes the connection"


def test_request_with_an_offer_in_single_bytes_is_served(address: tuple[str, int]) -> None:
    with connected(address) as connection:
        for byte in b"POST /?q HTTP/1.1\r\nHost: a\r\n%b%b" % (HTTP_2, SIZED):
            connection.sendall(bytes([byte]))
        assert read_until(connection, b">").endswith(b"<POST q %b>" % BODY)


@pytest.mark.parametrize("offer", [HTTP_2, b""])
def test_pipelined_requests_are_served_in_order(address: tuple[str, int], offer: bytes) -> None:
    with connected(address) as connection:
        count = 2000
        sender = threading.Thread(
            target=connection.sendall,
            args=(b"".join(b"POST /?%d HTTP/1.1\r\nHost: a\r\n%b%b" % (n, offer, SIZED) for n in range(count)),),
        )
        sender.start()
        answers = read_until(connection, b">", count)
        sender.join()
    assert [int(each.split()[0]) for each in answers.split(b"<POST ")[1:]] == list(range(count))


def test_connect_request_is_refused(address: tuple[str, int]) -> None:
    with connected(address) as connection:
        connection.sendall(b"CONNECT example.org:80 HTTP/1.1\r\nHost: example.org:80\r\n\r\n")
        assert read_until(connection, b"\r\n").startswith(b"HTTP/1.1 400 ")
