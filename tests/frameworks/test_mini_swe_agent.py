"""Test the environment class of mini-swe-agent with its default agent and a scripted model."""

import json
from pathlib import Path

import pytest

from support.frameworks import run_framework, skip_without
from support.system import System

CLIENT = Path(__file__).parent / "clients" / "mini_swe.py"

pytestmark = pytest.mark.slow


async def test_agent_runs_commands_and_submits_and_infrastructure_errors_end_its_run(
    system: System, tmp_path: Path
) -> None:
    skip_without("mini-swe-agent")
    ran = await run_framework(system, CLIENT, variables={"HOME": str(tmp_path)})
    assert ran.returncode == 0, ran.stderr[-4000:]
    said = json.loads(ran.stdout.splitlines()[-1])
    prompt, _, *observations, end = [
        message.get("content") for message in said["ended"]["messages"] if message["role"] != "assistant"
    ]
    assert prompt.startswith("You run on Linux ")
    assert observations[0] == "<returncode>3</returncode>\n<output>\nout\nerr\ncat\n/workspace/repo\n</output>"
    assert "user_timeout" in observations[1]
    assert observations[1].endswith("<returncode>-1</returncode>\n<output>\nbegun\n</output>")
    assert said["ended"]["messages"][-1]["extra"] == {"exit_status": "Submitted", "submission": "42\n"}
    assert end == "42\n"
    assert said["lost"]["raised"] == said["lost"]["messages"][-1]["extra"]["exit_status"] == "Conflict"
    assert len([message for message in said["lost"]["messages"] if message["role"] == "user"]) == 1  # no observation
    config = said["serialized"]["info"]["config"]
    assert config["environment_type"] == "arl_tangram.adapters.mini_swe_agent.TangramEnvironment"
    async with system.client() as api:
        found = (await api.get(f"/v1/environments/{config['environment_id']}")).json()
    assert (found["trajectory"], found["state"]) != ("s3-p1", "live")
