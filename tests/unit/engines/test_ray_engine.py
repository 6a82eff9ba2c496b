"""The Ray engine with a Ray cluster in memory."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from arl_engines.engine import ClusterEngineError, EngineNodeState, NodeCommand, NodeRequest, PoolSpec
from arl_engines.ray.driver_process import DriverProcess, ray_environment
from arl_engines.ray.ray_engine import RayEngine, RayOptions
from arl_local.state_dir import StateDir

POOL = PoolSpec(name="p", max_nodes=3)
SECRET = "join-token"


class MemoryRay:
    """A Ray cluster: its live nodes, and the agents that were created."""

    def __init__(self, *ray_nodes: str) -> None:
        self.ray_nodes: dict[str, dict[str, float]] = {node: {"tangram_cpu": 1.0} for node in ray_nodes}
        self.agents: dict[str, dict[str, Any]] = {}
        self.started: list[dict[str, Any]] = []
        self.requests: list[int] = []
        self.refuses = False

    async def call(self, request: str, **values: Any) -> Any:
        if self.refuses:
            raise ClusterEngineError("no head")
        return getattr(self, request)(**values)

    def status(self) -> dict[str, Any]:
        nodes = [{"id": node, "resources": resources} for node, resources in self.ray_nodes.items()]
        return {"nodes": nodes, "agents": {name: dict(agent) for name, agent in self.agents.items()}}

    def start(self, **given: Any) -> None:
        self.started.append(given)
        self.agents.setdefault(given["agent"], {"state": "running", "restarts": 0, "reason": ""})

    def stop(self, agent: str, deadline_s: float) -> None:
        self.agents[agent]["state"] = "stopping"

    def kill(self, agent: str) -> None:
        del self.agents[agent]

    def logs(self, agent: str, tail: int) -> str:
        return f"{tail} lines of {agent}"

    def request(self, resource: str, count: int) -> None:
        self.requests.append(count)


class WordCommands:
    async def command_for(self, request: NodeRequest) -> NodeCommand:
        return NodeCommand(argv=("node", str(request.directory)), env={"TANGRAM_JOIN_TOKEN": SECRET})


class Trial:
    """An engine, its cluster and its directory. `again` is the engine of a restarted controller."""

    def __init__(self, directory: Path, *ray_nodes: str, **options: Any) -> None:
        self.ray = MemoryRay(*ray_nodes)
        self.directory = directory / "pools"
        self._options = RayOptions(node_python="python", node_directory="~/nodes", **options)
        self.engine = self.again()

    def again(self) -> RayEngine:
        return RayEngine(self.directory, WordCommands(), self.ray, self._options)

    async def states(self) -> dict[str, EngineNodeState]:
        return {node.name: node.state for node in await self.engine.nodes()}


async def test_pool_has_at_most_one_node_on_a_ray_node(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "r1", "r2")
    assert await trial.engine.ensure(POOL, 1) == ""
    for engine in (trial.engine, trial.again()):
        assert await engine.ensure(POOL, 3) == "the Ray cluster has 2 usable nodes, and 1 more are needed"
    assert await trial.states() == dict.fromkeys(("p-1", "p-2"), EngineNodeState.RUNNING)
    assert sorted(each["agent"] for each in trial.ray.started) == ["tangram-p-r1", "tangram-p-r2"]
    await trial.engine.ensure(PoolSpec(name="q"), 1)
    assert "tangram-q-r1" in trial.ray.agents, "another pool may have a node there too"


async def test_token_is_in_the_environment_and_not_in_arguments(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "r1")
    await trial.engine.ensure(POOL, 1)
    (start,) = trial.ray.started
    assert start["spec"]["env"] == {"TANGRAM_JOIN_TOKEN": SECRET}
    assert start["spec"]["argv"] == ["node", "DIRECTORY/state"]
    assert SECRET not in (trial.directory / "ray" / "nodes.json").read_text()


async def test_released_node_stops_before_its_ray_node_is_used_again(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "r1")
    await trial.engine.ensure(POOL, 1)
    await trial.engine.release("p-1", 30)
    assert await trial.states() == {"p-1": EngineNodeState.STOPPING}
    assert "1 more are needed" in await trial.again().ensure(POOL, 1)
    trial.ray.agents["tangram-p-r1"]["state"] = "ended"
    await trial.states()
    assert (await trial.states(), trial.ray.agents) == ({}, {})
    assert await trial.engine.ensure(POOL, 1) == ""
    assert await trial.states() == {"p-2": EngineNodeState.RUNNING}


async def test_restarted_actor_of_a_released_node_is_stopped_again(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "r1")
    await trial.engine.ensure(POOL, 1)
    await trial.engine.release("p-1", 30)
    trial.ray.agents["tangram-p-r1"]["state"] = "running"
    await trial.again().nodes()
    assert trial.ray.agents["tangram-p-r1"]["state"] == "stopping"


async def test_silent_actor_of_a_released_node_is_killed_after_the_deadline(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "r1")
    await trial.engine.ensure(POOL, 1)
    await trial.engine.release("p-1", -60)
    trial.ray.agents["tangram-p-r1"]["state"] = "silent"
    await trial.states()
    assert await trial.states() == {}


async def test_dead_ray_node_is_replaced_by_another(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "r1", "r2")
    await trial.engine.ensure(POOL, 1)
    trial.ray.agents["tangram-p-r1"] = {"state": "silent"}
    assert await trial.states() == {"p-1": EngineNodeState.STARTING}
    del trial.ray.ray_nodes["r1"]
    assert await trial.states() == {}
    assert await trial.engine.ensure(POOL, 1) == ""
    assert set(trial.ray.agents) == {"tangram-p-r2"}


async def test_actor_killed_by_somebody_else_is_replaced_elsewhere_under_a_new_name(tmp_path: Path) -> None:
    """The name belongs to a node that has joined, so that it gets no further token."""
    trial = Trial(tmp_path, "r1", "r2")
    await trial.engine.ensure(POOL, 1)
    trial.ray.kill("tangram-p-r1")
    assert await trial.engine.ensure(POOL, 1) == ""
    assert await trial.states() == {"p-2": EngineNodeState.RUNNING}
    assert set(trial.ray.agents) == {"tangram-p-r2"}


async def test_node_whose_start_failed_is_started_by_the_next_controller(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "r1")
    start = trial.ray.start
    trial.ray.start = lambda **given: (_ for _ in ()).throw(ClusterEngineError("lost"))  # type: ignore[method-assign]
    with pytest.raises(ClusterEngineError):
        await trial.engine.ensure(POOL, 1)
    trial.ray.start = start  # type: ignore[method-assign]
    await trial.again().ensure(POOL, 1)
    assert await trial.states() == {"p-1": EngineNodeState.RUNNING}


async def test_resource_limits_the_ray_nodes_and_is_reserved(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "r1", "r2", resource="tangram_cpu", autoscale=True)
    trial.ray.ray_nodes["r1"] = {"CPU": 8.0}
    assert "1 usable nodes with the resource tangram_cpu, and 1 more" in await trial.engine.ensure(POOL, 2)
    (start,) = trial.ray.started
    assert (start["node_id"], start["resources"], start["gpus"]) == ("r2", {"tangram_cpu": 0.01}, 0.0)
    await trial.engine.ensure(PoolSpec(name="q"), 1)
    assert trial.ray.requests == [2, 3], "the request is the sum of all pools"


async def test_gpu_node_reserves_all_gpus_of_its_ray_node(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "r1", "r2")
    trial.ray.ray_nodes["r2"] = {"GPU": 8.0}
    await trial.engine.ensure(PoolSpec(name="g", kind="gpu"), 1)
    (start,) = trial.ray.started
    assert (start["node_id"], start["gpus"]) == ("r2", 8.0)


async def test_system_with_nodes_on_ray_is_not_purged(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "r1")
    await trial.engine.ensure(POOL, 1)
    with pytest.raises(OSError, match=r"still run on a Ray cluster: p-1\."):
        StateDir(tmp_path).purge()


async def test_python_without_ray_is_an_error_that_names_the_option(tmp_path: Path) -> None:
    for python in (sys.executable, "/does/not/exist"):
        driver = DriverProcess(python, address="auto", namespace="n", env={}, log=tmp_path / "log")
        with pytest.raises(ClusterEngineError, match="--ray-python"):
            await driver.call("status")


async def test_cluster_that_does_not_answer_is_an_error_that_names_the_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arl_engines.ray.driver_process.START_TIMEOUT_S", 0.1)
    (python := tmp_path / "python").write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o700)
    driver = DriverProcess(str(python), address="auto", namespace="n", env=os.environ, log=tmp_path / "log")
    with pytest.raises(ClusterEngineError, match=r"no answer within 0\.1 s\. Check --address and the token"):
        await driver.call("status")


def test_token_of_the_cluster_sets_the_mode_too() -> None:
    assert ray_environment({"RAY_AUTH_TOKEN_PATH": "/t", "TANGRAM_API_KEY": "k"}) == {
        "RAY_AUTH_TOKEN_PATH": "/t",
        "RAY_AUTH_MODE": "token",
    }
    given = ray_environment({"RAY_AUTH_TOKEN": "x", "RAY_AUTH_MODE": "disabled"}, "/t")
    assert given == {"RAY_AUTH_TOKEN_PATH": "/t", "RAY_AUTH_MODE": "token"}
    assert ray_environment({"PATH": "/bin"}) == {"PATH": "/bin"}
