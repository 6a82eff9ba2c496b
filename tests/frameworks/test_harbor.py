"""Test the environment class of Harbor: tasks of its own format, with its oracle agent, to a reward."""

import asyncio
import json
from datetime import UTC, datetime
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


def age_s(action: dict[str, Any]) -> float:
    """Return the seconds since an action started."""
    return (datetime.now(UTC) - datetime.fromisoformat(action["started_at"])).total_seconds()


async def end_environment_of_running_command(system: System, trial: str) -> bool:
    """End the environment of a trial while its solution runs. Return False if the solution does not run yet."""
    async with system.client() as api:
        found = await api.get("/v1/actions", params={"task": "harbor", "state": "running"})
        solving = [each for each in found.json()["items"] if each["trajectory"].startswith(trial)]
        if not any(each["kind"] == "exec" and age_s(each) > 1 for each in solving):  # others end at once
            return False
        live = await api.get("/v1/environments", params={"task": "harbor", "state": "live"})
        for each in live.json()["items"]:
            if each["trajectory"].startswith(trial):
                (await api.delete(f"/v1/environments/{each['id']}")).raise_for_status()
    return True


async def test_oracle_agent_gets_rewards_and_an_infrastructure_error_gives_none(system: System, tmp_path: Path) -> None:
    skip_without("harbor", NEWER_PYTHON)
    write_task(tmp_path / "tasks" / "right", "agent", "echo 42 > answer.txt")
    write_task(tmp_path / "tasks" / "wrong", "agent", "echo 41 > answer.txt")
    write_task(tmp_path / "tasks" / "lost", "no-such-template", "echo 42 > answer.txt")
    write_task(tmp_path / "tasks" / "ended", "agent", "echo 42 > answer.txt; while :; do :; done")
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
    running = asyncio.create_task(
        run_framework(
            system,
            "-c",
            RUN_HARBOR,
            *map(str, command),
            "--yes",
            python=NEWER_PYTHON,
            variables={"HOME": str(tmp_path)},
        )
    )
    await eventually(lambda: end_environment_of_running_command(system, "ended"), timeout_s=120)
    ran = await running
    results = results_of(tmp_path / "jobs")
    assert results.keys() == {"right", "wrong", "lost", "ended"}, ran.stdout[-3000:] + ran.stderr[-3000:]
    rewards = {name: (trial["verifier_result"] or {}).get("rewards") for name, trial in results.items()}
    assert rewards == {"right": {"reward": 1.0}, "wrong": {"reward": 0.0}, "lost": None, "ended": None}
    errors = {name: (trial["exception_info"] or {}).get("exception_type") for name, trial in results.items()}
    assert errors == {"right": None, "wrong": None, "lost": "TemplateNotFound", "ended": "RuntimeRequestError"}

    async def all_have_ended() -> bool:
        async with system.client() as api:
            found = await api.get("/v1/environments", params={"task": "harbor", "state": "live"})
        return found.json()["items"] == []

    await eventually(all_have_ended)
