"""Test `tangram call` and `tangram endpoints` as a user runs them in a terminal."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio
from aiohttp import web

from support.endpoint import Asked, External, external
from support.postgres import Databases
from support.system import API_KEY, System, running_system


@dataclass(frozen=True)
class Terminal:
    system: System
    there: External

    async def run(self, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
        """Run the command; return its exit code, standard output and standard error."""
        basic = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "arl_tangram.cli", *arguments),
            env=basic | {"TANGRAM_URL": self.system.url, "TANGRAM_API_KEY": API_KEY},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        said, complained = await process.communicate(stdin.encode())
        return process.returncode or 0, said.decode(), complained.decode()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def terminal(databases: Databases) -> AsyncIterator[Terminal]:
    owner_url = await databases.clone()
    async with external() as there:
        endpoints = {"search": {"url": there.url, "concurrency": 4, "rate_per_s": 50, "burst": 10}}
        overrides = {"api": {"TANGRAM_ENDPOINTS": json.dumps(endpoints)}}
        async with running_system(owner_url, overrides=overrides) as system:
            await system.start("api")
            yield Terminal(system, there)
    await databases.drop(owner_url)


async def echo(asked: Asked) -> web.StreamResponse:
    content_type = asked.headers.get("Content-Type", "none")
    return web.Response(text=f"{asked.method} {asked.url} {content_type} {asked.body.decode()}")


async def test_call_prints_only_the_response_body(terminal: Terminal) -> None:
    terminal.there.answer = echo
    assert await terminal.run("call", "search", "find", "-q", "q=a b", "-q", "q=c") == (
        0, "GET /find?q=a+b&q=c none ", "",
    )  # fmt: skip
    code, said, _ = await terminal.run("call", "search", "find", "-d", "-", stdin='{"é": 1}')
    assert (code, said) == (0, 'POST /find application/json {"é": 1}')
    code, said, _ = await terminal.run("call", "search", "-H", "content-type=text/x", "-d", "y")
    assert (code, said) == (0, "POST / text/x y")


async def test_endpoint_error_prints_the_response_and_exits_with_1(terminal: Terminal) -> None:
    terminal.there.answers(404)
    code, said, complained = await terminal.run("call", "search")
    assert (code, said) == (1, '{"status": 404}')
    assert "user_error: the endpoint returned status 404" in complained


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("search", "../x"), "request.path"),
        (("search", "-q", "q"), "--query q: write NAME=VALUE"),
        (("search", "-H", "Authorization=x"), "the broker adds the endpoint's own key"),
        (("search", "-X", "DELETE"), "search does not allow DELETE. Allowed: GET, HEAD, POST"),
        (("nothing",), "endpoint 'nothing' does not exist. Available: search"),
    ],
)
async def test_invalid_call_prints_a_one_line_error(terminal: Terminal, arguments: tuple[str, ...], said: str) -> None:
    code, out, complained = await terminal.run("call", *arguments)
    assert (code != 0, out) == (True, "")
    assert said in complained
    assert "Traceback" not in complained


async def test_endpoints_list_prints_limits_and_usage(terminal: Terminal) -> None:
    code, said, _ = await terminal.run("endpoints", "list")
    assert code == 0
    _, line = said.splitlines()
    assert line.split()[:3] == ["search", "GET,HEAD,POST", str(terminal.there.url)]
    assert "50/s, burst 10" in line
    assert "0/4" in line
    code, said, _ = await terminal.run("endpoints", "list", "-o", "json")
    assert json.loads(said)["items"][0]["nodes"][0]["concurrency"] == 4
