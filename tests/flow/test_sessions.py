"""Test sessions through the public API: a shell that stays open in an environment."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest_asyncio

from arl_tangram import AsyncEnvironmentSession, AsyncTangram, OutputData
from arl_wire.environments.environment import EnvironmentInfo
from support.postgres import Databases
from support.system import API_KEY, System, running_system

SMALL = {"task": "t", "memory_mib": 64, "disk_mib": 8}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    async with running_system(owner_url, driver="namespaces", cores=1) as system:
        yield system
    await databases.drop(owner_url)


@pytest_asyncio.fixture
async def tangram(system: System) -> AsyncIterator[AsyncTangram]:
    async with AsyncTangram(system.url, API_KEY) as tangram:
        yield tangram


@pytest_asyncio.fixture
async def environment(api: httpx.AsyncClient) -> AsyncIterator[EnvironmentInfo]:
    environment = EnvironmentInfo.model_validate((await api.post("/v1/environments", json=SMALL)).json())
    yield environment
    await api.delete(f"/v1/environments/{environment.id}")


async def says(session: AsyncEnvironmentSession, command: str, **options: Any) -> str:
    action = await session.run(command, **options)
    assert action.outcome == "ok", action
    assert action.result is not None
    return action.result.stdout.text


async def test_session_state_persists_between_commands(tangram: AsyncTangram, environment: EnvironmentInfo) -> None:
    session = AsyncEnvironmentSession(tangram, environment)
    first = await session.run("cd /tmp; x=1; sleep 100 &")
    assert first.message == "session 'main' began with this command"
    assert first.result is not None
    assert first.result.leftover_processes == 1
    assert await says(session, "pwd; echo $x; jobs | wc -l") == "/tmp\n1\n1\n"
    assert await says(AsyncEnvironmentSession(tangram, environment, "other"), "pwd; echo [$x]") == "/workspace\n[]\n"


async def test_session_survives_a_manager_restart(
    system: System, tangram: AsyncTangram, environment: EnvironmentInfo
) -> None:
    session = AsyncEnvironmentSession(tangram, environment)
    await says(session, "x=1")
    system.kill("cpu")
    await system.start("cpu")
    assert await says(session, "echo $x") == "1\n"


async def test_session_command_streams_output_and_reads_input(
    tangram: AsyncTangram, environment: EnvironmentInfo
) -> None:
    session = AsyncEnvironmentSession(tangram, environment)
    action = await session.submit("echo ready; read x; echo got $x", stdin_open=True)
    seen = b""
    async for event in tangram.stream_logs(action.id):
        if isinstance(event, OutputData):
            seen += event.data
        if seen == b"ready\n":
            await tangram.send_input(action.id, "hello\n")
    assert seen == b"ready\ngot hello\n"


async def test_command_past_its_timeout_keeps_the_session(tangram: AsyncTangram, environment: EnvironmentInfo) -> None:
    session = AsyncEnvironmentSession(tangram, environment)
    await says(session, "x=1")
    late = await session.run("echo begun; sleep 100", timeout_s=0.3)
    assert late.outcome == "user_timeout"
    assert await says(session, "echo $x") == "1\n"


async def test_exit_ends_the_session_and_is_reported(tangram: AsyncTangram, environment: EnvironmentInfo) -> None:
    session = AsyncEnvironmentSession(tangram, environment)
    ended = await session.run("x=1; exit 3")
    assert ended.result is not None
    assert (ended.outcome, ended.result.exit_code) == ("user_error", 3)
    assert "ended with this command" in (ended.message or "")
    assert await says(session, "echo [$x]") == "[]\n"


async def test_session_without_a_persistent_environment_is_refused(api: httpx.AsyncClient) -> None:
    answer = await api.post("/v1/actions", json={"task": "t", "session": "main", "command": "true"})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "body")
    assert "persistent environment" in answer.json()["detail"]
