"""Test the environment class of Harbor: tasks of its own format, with its oracle agent, to a reward."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.conditions import eventually
from support.frameworks import NEWER_PYTHON, run_framework, skip_without
from support.system import System

ENVIRONMENT = "arl_tangram.adapters.harbor:HarborEnvironment"
RUN_HARBOR = "from harbor.cli.main import app; app()"
TASK = """schema_version = "1.4"
[metadata]
[verifier]
timeout_sec = 60.0
[agent]
timeout_sec = 60.0
[environment]
docker_image = "IMAGE"
workdir = "/app"
cpus = 1
memory_mb = 512
storage_mb = 256
"""
TEST = """#!/bin/bash
[ "$(cat /app/answer.txt)" = 42 ] && [ "$(cat data.txt)" = given ] && reward=1 || reward=0
echo $reward > /logs/verifier/reward.txt
"""

pytestmark = pytest.mark.slow


def write_task(directory: Path, image: str, solution: str) -> None:
    files = {
        "task.toml": TASK.replace("IMAGE", image),
        "instruction.md": "Write 42 to /app/answer.txt.",
        "environment/data.txt": "given\n",
        "solution/solve.sh": f"#!/bin/bash\n{solution}\n",
        "tests/test.sh": TEST,
    }
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o755 if path.suffix == ".sh" else 0o644)


def results_of(jobs: Path) -> dict[str, dict[str, Any]]:
    """Return the result of each trial by the name of its task."""
    trials = [json.loads(path.read_text()) for path in jobs.glob("*/*/result.json")]
    return {trial["task_name"].rpartition("/")[2]: trial for trial in trials}


async def test_oracle_agent_gets_rewards_and_an_infrastructure_error_gives_none(system: System, tmp_path: Path) -> None:
    skip_without("harbor", NEWER_PYTHON)
    write_task(tmp_path / "tasks" / "right", "agent", "echo 42 > answer.txt")
    write_task(tmp_path / "tasks" / "wrong", "agent", "echo 41 > answer.txt")
    write_task(tmp_path / "tasks" / "lost", "no-such-template", "echo 42 > answer.txt")
    command = (
        "run",
        "-p",
        tmp_path / "tasks",
        "-a",
        "oracle",
        "--env",
        ENVIRONMENT,
        "-o",
        tmp_path / "jobs",
        "-n",
        "2",
    )
    ran = await run_framework(
        system, "-c", RUN_HARBOR, *map(str, command), "--yes", python=NEWER_PYTHON, variables={"HOME": str(tmp_path)}
    )
    results = results_of(tmp_path / "jobs")
    assert results.keys() == {"right", "wrong", "lost"}, ran.stdout[-3000:] + ran.stderr[-3000:]
    rewards = {name: (trial["verifier_result"] or {}).get("rewards") for name, trial in results.items()}
    assert rewards == {"right": {"reward": 1.0}, "wrong": {"reward": 0.0}, "lost": None}
    errors = {name: (trial["exception_info"] or {}).get("exception_type") for name, trial in results.items()}
    assert errors == {"right": None, "wrong": None, "lost": "TemplateNotFound"}

    async def all_have_ended() -> bool:
        async with system.client() as api:
            found = await api.get("/v1/environments", params={"task": "harbor", "state": "live"})
        return found.json()["items"] == []

    await eventually(all_have_ended)
