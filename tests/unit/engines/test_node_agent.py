"""The actor that keeps a node on a Ray node, without Ray and with a trivial process."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from arl_engines.ray import cluster_driver
from arl_engines.ray.cluster_driver import NodeAgent
from support.conditions import eventually, is_running

SLEEP = "import signal; print('up', flush=True); signal.pause()"
STUBBORN = "import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True)\nwhile True: signal.pause()"

StartAgent = Callable[..., NodeAgent]


def a_spec(directory: Path, program: str) -> dict[str, Any]:
    purge = "import pathlib, sys; pathlib.Path(sys.argv[1]).with_name('purged').touch()"
    return {
        "directory": str(directory),
        "argv": [sys.executable, "-S", "-c", program, "DIRECTORY"],
        "env": {"TANGRAM_JOIN_TOKEN": "t"},
        "purge": [sys.executable, "-S", "-c", purge, "DIRECTORY"],
    }


@pytest.fixture
def start_agent(tmp_path: Path) -> Iterator[StartAgent]:
    agents: list[NodeAgent] = []

    def start(program: str = SLEEP) -> NodeAgent:
        agents.append(NodeAgent(a_spec(tmp_path / "node", program)))
        return agents[-1]

    yield start
    for agent in agents:
        agent.stop(0.0)


async def until(agent: NodeAgent, state: str) -> dict[str, Any]:
    await eventually(lambda: agent.describe()["state"] == state)
    return agent.describe()


async def test_ended_process_starts_again(start_agent: StartAgent) -> None:
    agent = start_agent("print('out of memory')")
    await eventually(lambda: agent.describe()["restarts"] >= 2)
    assert agent.describe()["reason"] == "its process ended: out of memory"


async def test_stopped_node_leaves_no_files(start_agent: StartAgent, tmp_path: Path) -> None:
    agent = start_agent()
    pid = (await until(agent, "running"))["pid"]
    await eventually(lambda: agent.logs(5) == "up")
    agent.stop(30.0)
    assert (await until(agent, "ended"))["pid"] is None
    assert not is_running(pid)
    assert [path.name for path in tmp_path.iterdir()] == ["purged"]


async def test_node_that_does_not_stop_is_killed(start_agent: StartAgent) -> None:
    agent = start_agent(STUBBORN)
    await eventually(lambda: agent.logs(5) == "up")
    agent.stop(0.1)
    await until(agent, "ended")


async def test_node_gets_the_token_and_nothing_of_ray(start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_AUTH_TOKEN", "PYTHONPATH", "TANGRAM_API_KEY", "VIRTUAL_ENV"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    agent = start_agent("import os, signal; print(sorted(os.environ), flush=True); signal.pause()")
    await eventually(lambda: "TANGRAM_JOIN_TOKEN" in agent.logs(5))
    for name in ("RAY_", "PYTHONPATH", "TANGRAM_API_KEY", "VIRTUAL_ENV", "CUDA_VISIBLE_DEVICES"):
        assert name not in agent.logs(5)


async def test_node_stops_when_its_actor_is_killed(tmp_path: Path) -> None:
    """The driver file runs with the standard library only."""
    program = (
        f"import json, sys; sys.path.insert(0, {str(Path(cluster_driver.__file__).parent)!r}); import cluster_driver\n"
        "agent = cluster_driver.NodeAgent(json.load(sys.stdin))\n"
        "while not agent.describe()['pid']: pass\n"
        "print(agent.describe()['pid'], flush=True); agent._thread.join()"
    )
    actor = subprocess.Popen(
        [sys.executable, "-S", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert actor.stdin is not None
    assert actor.stdout is not None
    with actor.stdin, actor.stdout:
        json.dump(a_spec(tmp_path / "node", SLEEP), actor.stdin)
        actor.stdin.close()
        pid = int(actor.stdout.readline())
        assert is_running(pid)
        os.kill(actor.pid, signal.SIGKILL)
        actor.wait()
    await eventually(lambda: not is_running(pid))
