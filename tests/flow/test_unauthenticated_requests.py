"""Test that callers without a key cannot make the gateway read or parse a body, on any route."""

import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from support.postgres import Databases
from support.system import System, running_system

LATEST_S = 20.0
LONG = 1 << 20
OPENAPI = Path(__file__).parents[2] / "openapi" / "gateway.json"
PREFIXES = ("", "/t/a", "/reward-services/b", "/t/a/reward-services/b", "/ng-rollout/c")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    async with running_system(owner_url, cores=4) as system:
        yield system
    await databases.drop(owner_url)


def operations() -> list[tuple[str, str]]:
    """Return the method and a path of every operation that may have a body; compatible ones with each prefix."""
    found = []
    for path, item in json.loads(OPENAPI.read_text())["paths"].items():
        for method, operation in item.items():
            if method in ("post", "put", "patch", "delete"):
                filled = path.replace("{", "").replace("}", "")
                prefixes = PREFIXES if operation["tags"] == ["compatibility"] else ("",)
                found += [(method.upper(), prefix + filled) for prefix in prefixes]
    return found


def ask(system: System, method: str, path: str, *headers: str, body: bytes = b"") -> bytes:
    """Send a request on a separate connection and return its response."""
    lines = [f"{method} {path} HTTP/1.1", "host: a", "content-type: application/json", *headers, "", ""]
    with socket.create_connection(("127.0.0.1", system.ports["gateway"]), timeout=LATEST_S) as connection:
        connection.sendall("\r\n".join(lines).encode() + body)
        content = b""
        while part := connection.recv(1 << 16):
            content += part
            if content.endswith(b"}"):
                break
    return content


@pytest.mark.parametrize("key", ["", "authorization: Bearer tk_wrong"])
def test_request_without_a_valid_key_is_refused_before_its_body_arrives(system: System, key: str) -> None:
    wrong = []
    for method, path in operations():
        # The body never arrives, so a server that reads it first does not answer.
        answer = ask(system, method, path, f"content-length: {LONG}", *([key] if key else []))
        if b" 401 " not in answer[:20] or b"connection: close" not in answer.lower():
            wrong.append((method, path, answer[:60]))
    assert not wrong


def test_short_body_without_a_key_is_drained_and_the_connection_stays_open(system: System) -> None:
    body = b"[" * 60_000
    answer = ask(system, "POST", "/v1/environments", f"content-length: {len(body)}", body=body)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"connection: close" not in answer.lower()
    assert b'"code":"unauthenticated"' in answer


async def test_long_body_without_a_key_gets_its_response(system: System) -> None:
    async with httpx.AsyncClient(base_url=system.url) as stranger:
        for path in ("/v1/actions?x=1", "/v1/environments", "/run_code", "/verify"):
            answer = await stranger.post(path, content=b"[" * (4 << 20), headers={"content-type": "application/json"})
            assert answer.status_code == 401, path


@pytest.mark.parametrize("path", ["/v1/actions", "/v1/actions:batch", "/v1/environments", "/verify", "/run_code"])
@pytest.mark.parametrize(
    ("document", "status", "expected"),
    [
        (b"[" * 100_000, 400, "nested levels"),
        (b'{"labels":[' + b",".join([b"[]"] * 300_000) + b"]}", 413, "strings, arrays and objects"),
        (b"{" + b",".join(b'"a%d":0' % each for each in range(20_000)) + b"}", 413, "members in each object"),
    ],
)
async def test_document_above_the_limits_is_refused_with_the_limit(
    api: httpx.AsyncClient, path: str, document: bytes, status: int, expected: str
) -> None:
    answer = await api.post(path, content=document, headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    assert expected in answer.json()["detail"]


async def test_trailing_slash_is_no_redirect_to_the_host_of_the_client(system: System) -> None:
    async with httpx.AsyncClient(base_url=system.url, headers={"host": "evil.example"}) as stranger:
        for path in ("/v1/actions/", "/docs", "/t/a/v1/", "/livez/", "/verify/", "/t/a/verify/"):
            answer = await stranger.get(path)
            assert "evil.example" not in answer.headers.get("location", ""), path
