"""Test verl's code rewards and SandboxFusion's client, unmodified, against a running system."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.postgres import Databases
from support.system import API_KEY, running_system

PACKAGES = ("verl==0.9.1", "sandbox-fusion==0.3.7")
NEEDED = ("requests", "tenacity")
CLIENT = Path(__file__).parent / "clients" / "code_rewards.py"
TOOL = Path(__file__).parent / "clients" / "verl_tool.py"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the packages without their other dependencies, which take gigabytes and are not used."""
    directory = tmp_path_factory.mktemp("code-rewards")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--target", directory)
    for wanted in (("--no-deps", *PACKAGES), NEEDED):
        found = subprocess.run((*pip, *wanted), capture_output=True, text=True, check=False, timeout=300)
        if found.returncode != 0:
            pytest.skip(f"not to be installed: {found.stderr[-300:]}")
    return directory


async def test_verl_code_rewards_and_sandbox_fusion_get_their_results(databases: Databases, packages: Path) -> None:
    owner_url = await databases.clone()
    async with running_system(owner_url, driver="namespaces") as system:
        command = (sys.executable, CLIENT, packages, system.url.removeprefix("http://"), API_KEY)
        ran = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120)
    await databases.drop(owner_url)
    assert ran.returncode == 0, ran.stderr[-4000:]
    said: dict[str, Any] = json.loads(ran.stdout)
    assert said == {
        "right": [1.0, ["success", "success"]],
        "half": [0.5, ["success", "wrong_answer"]],
        "broken": [0.0, ["runtime_error", "runtime_error"]],
        "endless": [0.0, ["timeout", "timeout"]],
        "function": [1.0, ["success", "success"]],
        "sdk": ["Success", "said\n"],
    }


async def test_verl_tool_keeps_the_environment_of_a_rollout_between_calls(databases: Databases, packages: Path) -> None:
    owner_url = await databases.clone()
    async with running_system(owner_url, driver="namespaces") as system:
        command = (sys.executable, TOOL, packages, system.url, API_KEY)
        ran = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120)
    await databases.drop(owner_url)
    assert ran.returncode == 0, ran.stderr[-4000:]
    said: dict[str, Any] = json.loads(ran.stdout)
    assert said["kept"] == ["/a\nmade\n7\n", 0.0, "ok"]
    assert said["apart"] == ["", 0.0, "ok"]
    assert said["code"] == ["made\n\n", 0.0, "ok"]
    assert said["failed"] == ["\n[exit code 3]", 0.0, "user_error"]
    assert said["odd"][2] == "user_error"
    assert [text for text, _, _ in said["together"]] == [f"{at}\n" for at in range(8)]
    assert said["named"] == "shell"
