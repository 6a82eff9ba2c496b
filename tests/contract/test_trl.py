"""Test that TRL trains with our rewards. Runs only if TRL is installed: `make test-torch`."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from support.postgres import Databases
from support.system import API_KEY, System, running_system

pytest.importorskip("trl")

CLIENT = Path(__file__).parent / "clients" / "grpo.py"
STEPS = 5

pytestmark = pytest.mark.slow


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    async with running_system(owner_url, scores=True) as system:
        yield system
    await databases.drop(owner_url)


async def test_five_grpo_steps_are_rewarded_by_two_services(system: System, tmp_path: Path) -> None:
    command = (sys.executable, CLIENT, system.url, API_KEY, tmp_path)
    ran = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-4000:]
    said = json.loads(ran.stdout.splitlines()[-1])
    assert (said["steps"], len(said["logged"])) == (STEPS, STEPS)
    for service in ("minilm", "quality"):
        means = [entry[f"rewards/tangram_{service}/mean"] for entry in said["logged"]]
        assert all(-1 < mean < 1 and mean != 0 for mean in means), means
    async with system.client() as api:
        actions = (await api.get("/v1/actions", params={"task": "grpo", "limit": 1000})).json()["items"]
    assert {action["outcome"] for action in actions} == {"ok"}
