"""Test requests, WebSockets and plain connections to servers inside environments."""

import asyncio
import base64
import os
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio

from arl_store.migrate import ensure_api_key
from support.postgres import Databases
from support.system import API_KEY, System, running_system

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


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    await ensure_api_key(owner_url, "other", OTHER_KEY)
    async with running_system(owner_url, driver="namespaces", cores=2) as system:
        yield system
    await databases.drop(owner_url)


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


@pytest_asyncio.fixture
async def served(api: httpx.AsyncClient) -> AsyncIterator[str]:
    """Provide an environment whose server was left behind by an action, so that it is frozen."""
    id = await created(api)
    files = {"server.py": base64.b64encode(SERVER.encode()).decode()}
    assert (await run(api, id, BACKGROUND, files=files))["result"]["leftover_processes"] == 1
    yield id
    await api.delete(f"/v1/environments/{id}")


async def test_request_reaches_a_server_that_was_left_behind(api: httpx.AsyncClient, served: str) -> None:
    url = f"/v1/environments/{served}/ports/{PORT}/a%2Fb/c?d=%20e"
    sent = {"cookie": "console=secret", "x-own": "1", "x-forwarded-for": "1.2.3.4", "connection": "x-hop", "x-hop": "1"}
    answer = await api.get(url, headers=sent)
    assert answer.status_code == 200, answer.text
    seen = answer.json()
    headers = {name.lower(): value for name, value in seen["headers"].items()}
    assert (seen["method"], seen["path"]) == ("GET", "/a%2Fb/c?d=%20e")
    assert headers["host"] == f"localhost:{PORT}"
    assert headers["x-own"] == "1"
    assert headers["x-forwarded-prefix"] == f"/v1/environments/{served}/ports/{PORT}"
    assert not headers.keys() & {"authorization", "cookie", "x-hop", "x-forwarded-for"}
    assert API_KEY not in answer.text
    assert answer.headers["content-security-policy"].startswith("sandbox ")


async def test_all_methods_and_large_bodies_are_forwarded(api: httpx.AsyncClient, served: str) -> None:
    url = f"/v1/environments/{served}/ports/{PORT}/"
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        answer = await api.request(method, url, content=b"x" * 1000, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["method"], answer.json()["size"]) == (200, method, 1000)

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(160):
            yield b"y" * 65536

    assert (await api.post(url, content=parts())).json()["size"] == 160 * 65536
    answer = await api.get(f"/v1/environments/{served}/ports/{PORT}/stream/160")
    assert len(answer.content) == 160 * 65536


async def test_response_sets_nothing_for_the_host_of_the_api(api: httpx.AsyncClient, served: str) -> None:
    answer = await api.get(f"/v1/environments/{served}/ports/{PORT}/redirect")
    assert answer.status_code == 302
    assert answer.headers["location"] == f"/v1/environments/{served}/ports/{PORT}/there?x"
    assert not {"set-cookie", "strict-transport-security"} & set(answer.headers)


async def test_unused_port_says_that_nothing_listens(api: httpx.AsyncClient, served: str) -> None:
    answer = await api.get(f"/v1/environments/{served}/ports/8999/")
    assert answer.status_code == 502
    assert answer.json()["code"] == "nothing_listens"
    assert answer.json()["detail"] == f"Nothing listens on port 8999 in environment {served}"


@pytest.mark.parametrize("port", ["0", "65536", "abc", "-1", "8123x", "%20"])
async def test_invalid_port_names_the_field(api: httpx.AsyncClient, port: str) -> None:
    for method, path in (("GET", "/"), ("POST", ":sign")):
        answer = await api.request(
            method, f"/v1/environments/00000000-0000-7000-8000-000000000000/ports/{port}{path}", json={}
        )
        assert (answer.status_code, [each["field"] for each in answer.json()["errors"]]) == (422, ["path.port"])
