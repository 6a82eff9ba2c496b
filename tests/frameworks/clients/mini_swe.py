"""Run mini-swe-agent's default agent, with a scripted model, in environments of ARL-Tangram. Prints JSON."""

import json
import os
from typing import Any

os.environ["MSWEA_SILENT_STARTUP"] = "1"

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.models.test_models import DeterministicModel, make_output

from arl_tangram import Tangram, TangramError
from arl_tangram.adapters.mini_swe_agent import TangramEnvironment

CONFIG = {
    "environment_class": "arl_tangram.adapters.mini_swe_agent.TangramEnvironment",
    "trajectory": "s3-p1",
    "cwd": "/workspace/repo",
    "env": {"PAGER": "cat"},
    "timeout": 2,
}
TEMPLATES = {"system_template": "You run on {{system}} {{machine}}.", "instance_template": "{{task}}", "cost_limit": 0}


def run(environment: TangramEnvironment, commands: list[str]) -> dict[str, Any]:
    outputs = [make_output("", [{"command": command}]) for command in commands]
    agent = DefaultAgent(DeterministicModel(outputs=outputs), environment, **TEMPLATES)
    raised = None
    try:
        agent.run("fix it")
    except (TangramError, IndexError) as error:
        raised = type(error).__name__
    return {"raised": raised, "messages": agent.messages}


environment = get_environment(CONFIG)
environment.execute({"command": "mkdir -p repo"}, cwd="/workspace")
ended = run(
    environment,
    [
        "echo out; echo err >&2; echo $PAGER; pwd; exit 3",
        "echo 'print(6 * 7)' > a.py; echo begun; sleep 60",
        "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; python3 a.py",
    ],
)
environment.cleanup()
environment.cleanup()
lost = get_environment({**CONFIG, "trajectory": "lost"})
with Tangram() as tangram:
    tangram.end_environment(lost.environment_id)
print(json.dumps({"ended": ended, "lost": run(lost, ["true"]), "serialized": environment.serialize()}))
