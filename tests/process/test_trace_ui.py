"""Test that a real tracing back end, Arize Phoenix, shows one action as one trace."""

import asyncio
import os
import secrets
import shutil
import subprocess
import time
import venv
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import pytest_asyncio

from support.postgres import Databases
from support.system import System, free_ports, running_system

PHOENIX = "arize-phoenix==20.26.1"
UV = "uv==0.13.9"
INSTALL_S, START_S = 300, 120
NAMES = {"create action", "queue wait", "grant", "process action", "settle"}

pytestmark = pytest.mark.slow


def installed(directory: Path) -> Path:
    """Install Phoenix (850 MB) and return its command; skip the test if that fails."""
    venv.create(directory, with_pip=True)
    begun = time.monotonic()
    python = directory / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet"]
    uv = [directory / "bin" / "uv", "pip", "install", "--quiet", "--no-cache", "--python", python]
    # By uv in 15 s and by pip in 155; but uv knows nothing of how pip is configured here.
    failed = done_with([*pip, UV]) or done_with([*uv, PHOENIX])
    if failed and (failed := done_with([*pip, "--no-compile", PHOENIX])):
        pytest.skip(f"{PHOENIX} could not be installed: {failed[-300:]}")
    print(f"installed in {time.monotonic() - begun:.0f} s")
    return directory / "bin" / "phoenix"


def done_with(command: Sequence[str | Path]) -> str:
    """Run the command; return a description of its failure, or an empty string."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_S)
    except subprocess.TimeoutExpired:
        return f"not done in {INSTALL_S} s"
    return f"exit code {done.returncode}: {done.stderr}" if done.returncode else ""


class PhoenixServer(NamedTuple):
    client: httpx.AsyncClient
    endpoints: dict[str, str]
    """The OTLP endpoint for each protocol."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def phoenix(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[PhoenixServer]:
    directory = tmp_path_factory.mktemp("phoenix")
    command = await asyncio.to_thread(installed, directory / "venv")
    http, grpc = free_ports(2)
    said = {"PHOENIX_WORKING_DIR": str(directory), "PHOENIX_HOST": "127.0.0.1", "PHOENIX_TELEMETRY_ENABLED": "false"}
    ports = {"PHOENIX_PORT": str(http), "PHOENIX_GRPC_PORT": str(grpc), "TMPDIR": str(directory)}
    log = (directory / "phoenix.log").open("wb")
    process = subprocess.Popen([command, "serve"], env=os.environ | said | ports, stdout=log, stderr=log)
    log.close()
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{http}", timeout=30) as client:
            async with asyncio.timeout(START_S):
                while not await is_up(client):
                    assert process.poll() is None, (directory / "phoenix.log").read_text()[-2000:]
                    await asyncio.sleep(0.2)
            endpoints = {"http/protobuf": str(client.base_url), "grpc": f"http://127.0.0.1:{grpc}"}
            yield PhoenixServer(client, endpoints)
    finally:
        process.terminate()
        process.wait(30)
        shutil.rmtree(directory)


async def is_up(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/healthz")).status_code == 200
    except httpx.TransportError:
        return False


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["http/protobuf", "grpc"])
async def system(request: pytest.FixtureRequest, databases: Databases, phoenix: PhoenixServer) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    exports = {
        "OTEL_EXPORTER_OTLP_PROTOCOL": request.param,
        "OTEL_EXPORTER_OTLP_ENDPOINT": phoenix.endpoints[request.param],
    }
    async with running_system(owner_url, cores=64, overrides={"scheduler": exports}) as system:
        yield system
    await databases.drop(owner_url)


async def spans_of(phoenix: httpx.AsyncClient, trace_id: str) -> list[dict[str, Any]]:
    answer = await phoenix.get("/v1/projects/default/spans", params={"limit": 1000})
    spans = answer.json()["data"] if answer.status_code == 200 else []
    return [span for span in spans if span["context"]["trace_id"] == trace_id]


async def test_tracing_back_end_shows_an_action_as_one_trace(phoenix: PhoenixServer, system: System) -> None:
    trace_id, parent = secrets.token_hex(16), secrets.token_hex(8)
    body = {"task": "ui", "argv": ["sleep", "0.2"], "demand": {"cpu": 0.1}}
    headers = {"traceparent": f"00-{trace_id}-{parent}-01"}
    async with system.client() as api:
        action = (await api.post("/v1/actions", json=body, params={"wait": 20}, headers=headers)).json()
        trace = (await api.get(f"/v1/actions/{action['id']}/trace")).json()
    async with asyncio.timeout(60):
        while len(spans := await spans_of(phoenix.client, trace_id)) < len(NAMES):
            await asyncio.sleep(0.2)
    shown = {span["name"]: span for span in spans}
    assert shown.keys() == NAMES
    root = shown["create action"]
    assert root["parent_id"] == parent
    assert root["attributes"]["messaging.message.id"] == action["id"]
    assert {span["parent_id"] for name, span in shown.items() if span is not root} == {root["context"]["span_id"]}
    for span in trace["spans"]:
        assert shown[span["name"]]["context"]["span_id"] == span["span_id"]
        assert datetime.fromisoformat(shown[span["name"]]["start_time"]) == datetime.fromisoformat(span["started_at"])
        assert datetime.fromisoformat(shown[span["name"]]["end_time"]) == datetime.fromisoformat(span["ended_at"])
