"""Test the sandbox provider of NeMo Gym through its own sandbox API, asynchronous and blocking."""

import json
from pathlib import Path

import pytest

from support.conditions import eventually
from support.frameworks import NEWER_PYTHON, run_framework, skip_without
from support.system import System

CLIENT = Path(__file__).parent / "clients" / "nemo_gym_sandbox.py"

pytestmark = pytest.mark.slow


async def test_provider_runs_commands_and_tells_failures_of_the_sandbox_apart(system: System) -> None:
    skip_without("nemo-gym", NEWER_PYTHON)
    ran = await run_framework(system, CLIENT, python=NEWER_PYTHON)
    assert ran.returncode == 0, ran.stderr[-4000:]
    said = json.loads(ran.stdout.splitlines()[-1])
    assert said["command"] == ["é/app\n", "hello", 3, None]
    assert said["timeout"][0::2] == ["begun\n", 124]
    assert said["timeout"][3] == "timeout"
    assert said["file"] == [0, 255]
    assert said["sizes"] == ["s5-p1", 256, 1024, 600]
    assert (said["running"], said["stopped"]) == ("running", "stopped")
    assert said["lost"][2:] == [125, "sandbox"]
    assert said["blocking"] == ["42\n", "", 0, None]
    assert said["refused"][0] == "SandboxCreateError"
    assert "no-such-template" in said["refused"][1]

    async def all_have_ended() -> bool:
        async with system.client() as api:
            found = await api.get("/v1/environments", params={"task": "nemo-gym", "state": "live"})
        return found.json()["items"] == []

    await eventually(all_have_ended)
