"""Test that connections which send no complete request are closed, and that all others keep working."""

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
REQUEST = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n"
Address = tuple[str, int]


async def answer(request: Request) -> Response:
    """Answer without reading the body."""
    return PlainTextResponse("x" * int(request.query_params.get("size", 2)))


@contextlib.contextmanager
def serving(limits: ConnectionLimits) -> Iterator[Address]:
    """Run a server with the limits and yield its address."""
    app = Starlette(routes=[Route("/", answer, methods=["GET", "POST"])])
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        config = uvicorn.Config(app, http=limited_protocol(limits), log_config=None, timeout_keep_alive=60)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()
        finally:
            server.should_exit = True
            thread.join()


def connect(address: Address) -> socket.socket:
    return socket.create_connection(address, timeout=LATEST_S)


def read_all(connection: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    content = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            content += part
    return content


def request(connection: socket.socket, content: bytes = REQUEST) -> bytes:
    """Send a request on an open connection and return the start of its response."""
    connection.sendall(content)
    return connection.recv(1 << 16)


@pytest.mark.parametrize("sent", [b"", b"GET", b"GET / HTTP/1.1\r\nhost: a\r\nx: "])
def test_half_sent_header_closes_the_connection_after_the_timeout(sent: bytes) -> None:
    with serving(ConnectionLimits(header_timeout_s=0.2)) as address, connect(address) as connection:
        connection.sendall(sent)
        assert read_all(connection) == b""


def test_half_sent_second_header_closes_the_connection_after_the_timeout() -> None:
    with serving(ConnectionLimits(header_timeout_s=0.2)) as address, connect(address) as connection:
        assert request(connection).startswith(b"HTTP/1.1 200")
        connection.sendall(REQUEST[:10])
        assert read_all(connection) == b""


def test_idle_connection_outlives_the_header_timeout() -> None:
    with serving(ConnectionLimits(header_timeout_s=0.2)) as address, connect(address) as idle:
        assert request(idle).startswith(b"HTTP/1.1 200")
        with connect(address) as half_open:
            assert read_all(half_open) == b""
        assert request(idle).startswith(b"HTTP/1.1 200")


def test_connection_that_never_ends_its_header_is_refused_by_size() -> None:
    with serving(ConnectionLimits(max_header_bytes=1 << 10)) as address, connect(address) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nx: " + b"a" * 2000)
        assert read_all(connection).startswith(b"HTTP/1.1 431 ")


def test_half_open_connections_above_the_limit_close_the_oldest_of_their_address() -> None:
    with (
        contextlib.ExitStack() as opened,
        serving(ConnectionLimits(max_half_open_per_address=8, min_half_open_s=0)) as address,
    ):
        waiting = [opened.enter_context(connect(address)) for _ in range(20)]
        assert all(read_all(each) == b"" for each in waiting[:12])
        assert request(waiting[-1]).startswith(b"HTTP/1.1 200")
        with connect(address) as another:
            assert request(another).startswith(b"HTTP/1.1 200")


def test_burst_of_young_connections_above_the_limit_is_answered() -> None:
    with contextlib.ExitStack() as opened, serving(ConnectionLimits(max_half_open_per_address=8)) as address:
        waiting = [opened.enter_context(connect(address)) for _ in range(100)]
        for each in waiting:
            each.sendall(REQUEST)
        assert all(each.recv(1 << 16).startswith(b"HTTP/1.1 200") for each in waiting)


def test_endless_trailers_close_the_connection() -> None:
    with serving(ConnectionLimits(max_header_bytes=1 << 10)) as address, connect(address) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n")
        with contextlib.suppress(OSError):
            for _ in range(1000):
                connection.sendall(b"a:b\r\n" * 100)
        read_all(connection)


def test_new_connection_replaces_an_inactive_one_above_the_total() -> None:
    with contextlib.ExitStack() as opened, serving(ConnectionLimits(max_connections=4)) as address:
        idle = [opened.enter_context(connect(address)) for _ in range(4)]
        assert all(request(each).startswith(b"HTTP/1.1 200") for each in idle)
        with connect(address) as newest:
            assert request(newest).startswith(b"HTTP/1.1 200")
        assert read_all(idle[0]) == b""
        assert request(idle[3]).startswith(b"HTTP/1.1 200")


def test_client_that_reads_nothing_loses_its_connection() -> None:
    with serving(ConnectionLimits(stalled_response_s=0.2)) as address, connect(address) as connection:
        connection.sendall(REQUEST.replace(b"/", b"/?size=50000000", 1))
        with connect(address) as another:
            assert request(another).startswith(b"HTTP/1.1 200")
        assert len(read_all(connection)) < 50_000_000


def test_unread_body_is_discarded_up_to_the_limit() -> None:
    limits = ConnectionLimits(max_unread_bytes=1 << 16)
    with serving(limits) as address, connect(address) as connection:
        assert request(connection, POST % 5000).startswith(b"HTTP/1.1 200")
        connection.sendall(b"x" * 5000)
        assert request(connection).startswith(b"HTTP/1.1 200")
        assert request(connection, POST % (1 << 20)).startswith(b"HTTP/1.1 200")
        with contextlib.suppress(OSError):
            for _ in range(64):
                connection.sendall(b"x" * (1 << 14))
        assert read_all(connection) == b""
