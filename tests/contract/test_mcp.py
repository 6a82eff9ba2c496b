"""Test `tangram mcp` with the client of the package `mcp`, over stdio and over streamable HTTP."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
import pytest_asyncio
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent

from support.conditions import eventually
from support.postgres import Databases
from support.system import API_KEY, System, free_ports, running_system

COMMAND = (sys.executable, "-m", "arl_tangram.cli", "mcp")
TOOLS = {"run_command", "run_python", "read_file", "write_file", "list_files"}
MODERN, LEGACY = "auto", "legacy"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    async with running_system(owner_url, driver="namespaces") as system:
        yield system
    await databases.drop(owner_url)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def address(system: System) -> AsyncIterator[str]:
    """The address of a server over HTTP."""
    async with serving(system, "--task", "http") as address:
        yield address


@asynccontextmanager
async def serving(system: System, *options: str) -> AsyncIterator[str]:
    """Run a server over HTTP and yield its address. It has no key of its own."""
    [port] = free_ports(1)
    environment = variables(system) | {"TANGRAM_API_KEY": ""}
    process = subprocess.Popen((*COMMAND, "--http", str(port), *options), env=environment)

    async def answers() -> bool:
        async with httpx.AsyncClient() as client:
            try:
                return (await client.get(f"http://127.0.0.1:{port}/mcp")).status_code == 401
            except httpx.TransportError:
                return False

    try:
        await eventually(answers, timeout_s=30)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        assert process.wait(timeout=30) in (0, -15)


def variables(system: System) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TANGRAM_")}
    return kept | {"TANGRAM_URL": system.url, "TANGRAM_API_KEY": API_KEY}


@asynccontextmanager
async def over_stdio(system: System, task: str, *options: str, mode: str = MODERN) -> AsyncIterator[Client]:
    program, *arguments = (*COMMAND, "--task", task, *options)
    server = StdioServerParameters(command=program, args=arguments, env=variables(system))
    async with Client(stdio_client(server), mode=mode) as client:
        yield client


@asynccontextmanager
async def over_http(address: str, key: str = API_KEY, mode: str = MODERN) -> AsyncIterator[Client]:
    async with AsyncExitStack() as stack:
        headers = {"authorization": f"Bearer {key}"}
        http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=60))
        yield await stack.enter_async_context(Client(streamable_http_client(address, http_client=http), mode=mode))


def text_of(result: CallToolResult) -> str:
    [block] = result.content
    assert isinstance(block, TextContent)
    return block.text


async def call(client: Client, tool: str, **arguments: Any) -> str:
    """Call a tool that succeeds, and return its text."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, text_of(result)
    return text_of(result)


async def structured(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert result.structured_content is not None, text_of(result)
    return dict(result.structured_content)


async def environments_of(system: System, task: str, state: str = "live") -> list[dict[str, Any]]:
    async with system.client() as api:
        found = await api.get("/v1/environments", params={"task": task, "state": state})
    return list(found.json()["items"])


async def actions_of(system: System, task: str) -> list[dict[str, Any]]:
    async with system.client() as api:
        return list((await api.get("/v1/actions", params={"task": task})).json()["items"])


async def has_action(system: System, task: str, **fields: str) -> bool:
    return any(fields.items() <= action.items() for action in await actions_of(system, task))


@pytest.mark.parametrize("mode", [MODERN, LEGACY])
async def test_stdio_session_has_one_environment_that_ends_with_it(system: System, mode: str) -> None:
    task = f"stdio-{mode}"
    async with over_stdio(system, task, "--trajectory", "s1-p2", mode=mode) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == TOOLS
        assert await environments_of(system, task) == []
        assert await call(client, "write_file", path="src/a.txt", content="é\n") == "3 bytes written to src/a.txt"
        assert (
            await call(client, "run_command", command="cat a.txt; pwd", cwd="src") == "é\n/workspace/src\n[exit code 0]"
        )
        assert await call(client, "run_python", source="print(6 * 7)") == "42\n[exit code 0]"
        assert await call(client, "read_file", path="/workspace/src/a.txt") == "é\n"
        assert await call(client, "list_files", path="src") == 'file 3 "a.txt"'
        [environment] = await environments_of(system, task)
        assert environment["trajectory"] == "s1-p2"
    assert await environments_of(system, task) == []
    kinds = [action["kind"] for action in await actions_of(system, task)]
    assert kinds.count("exec") == 4  # each call of a tool is an action; list_files is a transfer
    assert len(kinds) == 6


async def test_exit_codes_timeouts_and_files_are_reported_apart(system: System) -> None:
    async with over_stdio(system, "outcomes") as client:
        failed = await structured(client, "run_command", command="echo out; echo err >&2; exit 3")
        assert [failed[name] for name in ("outcome", "exit_code", "stdout", "stderr")] == [
            "user_error",
            3,
            "out\n",
            "err\n",
        ]
        slow = await structured(client, "run_command", command="echo first; sleep 60", timeout_s=0.5)
        assert [slow[name] for name in ("outcome", "exit_code", "stdout")] == ["user_timeout", None, "first\n"]
        assert not failed["is_infrastructure"] and not slow["is_infrastructure"]  # noqa: PT018
        await call(client, "write_file", path="/tmp/deep/b.bin", content="/w8=", encoding="base64")
        assert await call(client, "read_file", path="/tmp/deep/b.bin", encoding="base64") == "/w8="
        for path, said in (("/tmp/none", "No such file"), ("/tmp", "Is a directory"), ("/tmp/deep/b.bin", "not text")):
            result = await client.call_tool("read_file", {"path": path})
            assert result.is_error
            assert said in text_of(result)


async def test_large_file_travels_unchanged_and_leaves_nothing_behind(system: System) -> None:
    async with over_stdio(system, "large") as client:
        content = "0123456789abcdef" * (9 << 16)  # 9 MiB: an archive
        await call(client, "write_file", path="large.txt", content=content)
        assert await call(client, "read_file", path="large.txt") == content
        assert await call(client, "run_command", command="ls -A") == "large.txt\n[exit code 0]"


async def test_infrastructure_error_is_no_exit_code(system: System) -> None:
    async with over_stdio(system, "lost") as client:
        await call(client, "run_command", command="true")
        [environment] = await environments_of(system, "lost")
        running = asyncio.create_task(client.call_tool("run_command", {"command": "sleep 60; exit 7"}))

        async def is_running() -> bool:
            return any(action["state"] == "running" for action in await actions_of(system, "lost"))

        await eventually(is_running)
        async with system.client() as api:
            (await api.delete(f"/v1/environments/{environment['id']}")).raise_for_status()
        for result in (await running, await client.call_tool("run_command", {"command": "true"})):
            assert result.is_error
            assert result.structured_content is not None
            assert result.structured_content["is_infrastructure"]
            assert result.structured_content["exit_code"] is None
            assert text_of(result).startswith("[the sandbox failed, and not the command")


async def test_two_http_sessions_have_their_own_environments_that_end_with_them(system: System, address: str) -> None:
    async with over_http(address) as one:
        async with over_http(address) as other:
            assert one.protocol_version == other.protocol_version == "2025-11-25"  # versions with sessions
            for client, name in ((one, "one"), (other, "other")):
                await call(client, "write_file", path="name", content=name)
            assert [await call(client, "read_file", path="name") for client in (one, other)] == ["one", "other"]
            assert len(await environments_of(system, "http")) == 2

        async def one_is_left() -> bool:
            return len(await environments_of(system, "http")) == 1

        await eventually(one_is_left)
        assert await call(one, "read_file", path="name") == "one"

    async def none_is_left() -> bool:
        return await environments_of(system, "http") == []

    await eventually(none_is_left)


async def test_clients_without_sessions_share_the_environment_of_a_trajectory(system: System, address: str) -> None:
    named = f"{address}?trajectory=s7-p1"
    for content in ("first", "second"):
        async with over_http(named) as client:
            assert client.protocol_version == "2026-07-28"
            await call(client, "run_command", command=f"echo {content} >> log")
    async with over_http(named) as client:
        assert await call(client, "read_file", path="log") == "first\nsecond\n"
    [environment] = [each for each in await environments_of(system, "http") if each["trajectory"] == "s7-p1"]
    assert environment["idle_ttl_s"] == 1800


async def test_ended_environment_of_a_trajectory_is_not_replaced_by_an_empty_one(system: System) -> None:
    async with serving(system, "--task", "unused", "--idle-ttl-s", "1") as address:
        async with over_http(f"{address}?trajectory=first") as client:
            await call(client, "write_file", path="a", content="x")
        async with over_http(f"{address}?trajectory=second") as other:

            async def has_ended() -> bool:
                await call(other, "run_command", command="true")
                live = await environments_of(system, "unused")
                return "first" not in {each["trajectory"] for each in live}

            await eventually(has_ended, timeout_s=30)
        async with over_http(f"{address}?trajectory=first") as client:
            result = await client.call_tool("read_file", {"path": "a"})
    assert result.is_error
    assert "another name" in text_of(result)
    assert result.structured_content is not None
    assert result.structured_content["is_infrastructure"]


async def test_cancelled_call_cancels_its_command(system: System) -> None:
    async with over_stdio(system, "cancelled") as client:
        calling = asyncio.create_task(client.call_tool("run_command", {"command": "sleep 60"}))
        await eventually(lambda: has_action(system, "cancelled", kind="exec", state="running"))
        calling.cancel()
        await eventually(lambda: has_action(system, "cancelled", kind="exec", outcome="cancelled"))
        assert "[exit code 0]" in await call(client, "run_command", command="true")


async def test_server_explains_to_a_client_without_session_and_trajectory_what_to_do(address: str) -> None:
    async with over_http(address, mode="2026-07-28") as client:
        result = await client.call_tool("run_command", {"command": "true"})
    assert result.is_error
    assert "?trajectory=NAME" in text_of(result)


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer tk_wrong"}], ids=["none", "wrong"])
async def test_http_without_a_valid_key_is_refused(address: str, headers: dict[str, str]) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    accept = {"accept": "application/json, text/event-stream"}
    async with httpx.AsyncClient() as client:
        answer = await client.post(address, json=body, headers={**accept, **headers})
    assert answer.status_code == 401


async def test_server_refuses_options_that_do_not_fit(system: System, tmp_path: Path) -> None:
    for options, said in (
        (("--http", "8800x"), "has no port"),
        (("--http", "8800", "--trajectory", "a"), "?trajectory=NAME"),
    ):
        command = (*COMMAND, *options)
        ran = await asyncio.to_thread(
            subprocess.run, command, env=variables(system), capture_output=True, text=True, timeout=60, cwd=tmp_path
        )
        assert ran.returncode == 2
        assert said in ran.stderr
