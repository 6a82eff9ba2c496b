"""Servers inside environments, and connections to them, for the tests of ports."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import httpx

from support.system import API_KEY, System

OTHER_KEY = "tk_ffffffffffffffffffffffffffffffff"
PORT = 8123
SERVER = r"""
import hashlib, base64, http.server, json, os, socket, sys

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def do_GET(self):
        if self.path.startswith("/stream"):
            self.send_response(200)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for _ in range(int(self.path.rpartition("/")[2])):
                self.wfile.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")
        elif self.headers.get("upgrade") == "websocket":
            self.send_response(101)
            self.send_header("upgrade", "websocket")
            self.send_header("connection", "upgrade")
            self.send_header("x-key", self.headers["sec-websocket-key"])
            self.end_headers()
            self.wfile.write(b"hello ")
            while data := self.connection.recv(65536):
                self.connection.sendall(data.upper())
            self.close_connection = True
        elif self.path == "/redirect":
            self.send_response(302)
            self.send_header("location", "/there?x")
            self.send_header("set-cookie", "session=evil; Path=/")
            self.send_header("strict-transport-security", "max-age=1")
            self.send_header("content-length", "0")
            self.end_headers()
        else:
            self.reply()

    def do_POST(self):
        self.reply()

    do_PUT = do_DELETE = do_OPTIONS = do_PATCH = do_POST

    def reply(self):
        size = 0
        if self.headers.get("transfer-encoding") == "chunked":
            while length := int(self.rfile.readline(), 16):
                size += len(self.rfile.read(length))
                self.rfile.readline()
            self.rfile.readline()
        else:
            size = len(self.rfile.read(int(self.headers.get("content-length", 0))))
        said = {"method": self.command, "path": self.path, "headers": dict(self.headers), "size": size}
        content = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
open("ready", "w").close()
server.serve_forever()
"""
BACKGROUND = f"nohup python3 server.py {PORT} >/dev/null 2>&1 & until [ -e ready ]; do sleep 0.01; done"


HOSTILE = r"""
import socket, sys, threading

def serve(client):
    kind = client.recv(65536).split(b" ")[1][1:]
    try:
        if kind == b"headers":
            client.sendall(b"HTTP/1.1 200 OK\r\n")
            while True:
                client.sendall(b"x-a: b\r\n" * 1000)
        elif kind == b"interim":
            while True:
                client.sendall(b"HTTP/1.1 103 Early\r\n\r\n" * 100)
        elif kind == b"garbage":
            client.sendall(b"\x00\xff" * 1000)
        elif kind == b"smuggle":
            client.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
            client.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")
        elif kind == b"split":
            client.sendall(b"HTTP/1.1 200 OK\r\nx: a\rset-cookie: b\r\ncontent-length: 0\r\n\r\n")
        elif kind == b"status":
            client.sendall(b"HTTP/1.1 999 No\r\ncontent-length: 0\r\n\r\n")
        elif kind == b"control":
            client.sendall(b"HTTP/1.1 200 OK\r\nx: a\x01\r\ncontent-length: 0\r\n\r\n")
        elif kind == b"lengths":
            client.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\n\r\n")
            client.sendall(b"2\r\nok\r\n0\r\n\r\n")
        elif kind == b"switch":
            client.sendall(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: tcp\r\n\r\n")
        elif kind == b"short":
            client.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort")
        elif kind == b"endless":
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                client.sendall(b"x" * 65536)
        elif kind == b"silent":
            client.recv(1)
    except OSError:
        pass
    client.close()

server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
open("ready", "w").close()
while True:
    threading.Thread(target=serve, args=(server.accept()[0],)).start()
"""


async def created(api: httpx.AsyncClient) -> str:
    answer = await api.post("/v1/environments", json={"task": "t", "memory_mib": 256, "disk_mib": 16, "pids": 128})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def run(api: httpx.AsyncClient, id: str, script: str, **changes: Any) -> dict[str, Any]:
    body = {"task": "t", "argv": ["sh", "-c", script], "environment": {"id": id}}
    answer = await api.post("/v1/actions", params={"wait": 30}, json={**body, **changes})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@asynccontextmanager
async def served_environment(api: httpx.AsyncClient, source: str = SERVER) -> AsyncIterator[str]:
    """Provide an environment whose server was left behind by an action, so that it is frozen."""
    id = await created(api)
    files = {"server.py": base64.b64encode(source.encode()).decode()}
    assert (await run(api, id, BACKGROUND, files=files))["result"]["leftover_processes"] == 1
    yield id
    await api.delete(f"/v1/environments/{id}")


@asynccontextmanager
async def upgraded(
    system: System, path: str, protocol: str, key: str | None = API_KEY
) -> AsyncIterator[tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]]:
    """Provide the head of the response, and the connection after it."""
    address = urlsplit(system.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    keyed = f"authorization: Bearer {key}\r\n" if key is not None else ""
    fields = f"connection: upgrade\r\nupgrade: {protocol}\r\nsec-websocket-key: k\r\n{keyed}"
    writer.write(f"GET {path} HTTP/1.1\r\nhost: gateway\r\n{fields}\r\n".encode())
    try:
        yield await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20), reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def wait_until_idle(api: httpx.AsyncClient) -> None:
    """Wait until no action runs. The action of connections ends soon after the last of them."""
    for _ in range(100):
        if not (await api.get("/v1/actions", params={"task": "t", "state": "running"})).json()["items"]:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("an action still runs")
