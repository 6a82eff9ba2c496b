"""Engines under test: how a controller is started, and how a node of the engine is hurt from outside."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Unpack

from arl_tangram import Action, AsyncTangram, ExecOptions, NodeInfo, PoolInfo
from support.conditions import eventually, is_running
from support.machine import Machine
from support.ray_cluster import RAY_PYTHON, RESOURCE, RayCluster
from support.slurm_cluster import PARTITION, SlurmCluster

__all__ = ["ENGINES", "EngineFixture", "LocalEngineFixture", "PoolRun", "RayEngineFixture", "SlurmEngineFixture"]

JOIN_S = 90.0
POLL_S = 0.1
DRIVER = "simulated"
"""Driver of the nodes. Actions sleep in the manager, so that three nodes fit on a small machine."""


class EngineFixture(Protocol):
    """Properties of an engine that the suite needs. A further engine adds a class and a name in `ENGINES`."""

    def command(self) -> tuple[str, ...]:
        """Return the words of `tangram` that run a controller of this engine."""
        ...

    def process_ids(self, pool: str) -> dict[str, int]:
        """Return the process of each running node of the pool, by node."""
        ...

    def kill_manager(self, node: str) -> None:
        """Kill the manager of a node, whose supervisor stays."""
        ...

    def lose_node(self, node: str) -> None:
        """Kill all processes of a node at once."""
        ...


@dataclass(frozen=True)
class LocalEngineFixture:
    """Nodes as processes of this machine."""

    machine: Machine

    def command(self) -> tuple[str, ...]:
        return ("engine", "local")

    def process_ids(self, pool: str) -> dict[str, int]:
        found = {}
        for file in (self.machine.directory / "pools").glob(f"{pool}-*/process.json"):
            process = json.loads(file.read_text())
            if is_running(process["pid"]):
                found[file.parent.name] = int(process["pid"])
        return found

    def kill_manager(self, node: str) -> None:
        state = json.loads((self.machine.directory / "pools" / node / "state" / "processes.json").read_text())
        os.kill(state["processes"]["cpu"]["pid"], signal.SIGKILL)

    def lose_node(self, node: str) -> None:
        os.kill(self.process_ids(node.rpartition("-")[0])[node], signal.SIGKILL)  # its children die with it


@dataclass(frozen=True)
class ClusterNodes:
    """Nodes whose states are in NAMESPACE/NODE/state below the directory `nodes` of a cluster on this machine."""

    machine: Machine
    cluster: RayCluster | SlurmCluster

    def process_ids(self, pool: str) -> dict[str, int]:
        return locked_by(self.cluster.directory / "nodes", pool)

    def kill_manager(self, node: str) -> None:
        (file,) = (self.cluster.directory / "nodes").glob(f"*/{node}/state/processes.json")
        os.kill(json.loads(file.read_text())["processes"]["cpu"]["pid"], signal.SIGKILL)

    def lose_node(self, node: str) -> None:
        os.kill(self.process_ids(node.rpartition("-")[0])[node], signal.SIGKILL)  # its children die with it


@dataclass(frozen=True)
class RayEngineFixture(ClusterNodes):
    """Nodes on a Ray cluster of this machine."""

    cluster: RayCluster

    def command(self) -> tuple[str, ...]:
        connection = ("--address", self.cluster.address, "--ray-token", str(self.cluster.token))
        nodes = ("--node-dir", str(self.cluster.directory / "nodes"), "--resource", RESOURCE)
        return ("engine", "ray", "--ray-python", str(RAY_PYTHON), *connection, *nodes)

    def ray_node_of(self, node: str) -> str:
        """Return Ray's id of the node's Ray node."""
        table = json.loads((self.machine.directory / "pools" / "ray" / "nodes.json").read_text())
        return next(str(each["ray_node"]) for each in table["nodes"] if each["name"] == node)


@dataclass(frozen=True)
class SlurmEngineFixture(ClusterNodes):
    """Nodes as jobs of a Slurm cluster of this machine."""

    cluster: SlurmCluster

    def command(self) -> tuple[str, ...]:
        nodes = ("--node-dir", str(self.cluster.directory / "nodes"), "--partition", PARTITION)
        return ("engine", "slurm", *nodes, "--time", "20", "--signal-before", "90")

    def job_of(self, node: str) -> str:
        """Return the id of the node's job."""
        table = json.loads((self.machine.directory / "pools" / "slurm" / "nodes.json").read_text())
        return next(str(each["job"]) for each in table["nodes"] if each["name"] == node)


def locked_by(directory: Path, pool: str) -> dict[str, int]:
    """Return the process that has locked the state directory of each node of the pool."""
    found = {}
    for file in directory.glob(f"*/{pool}-*/state/lock"):
        owner = file.read_text()
        if owner and is_running(int(owner)):
            found[file.parents[1].name] = int(owner)
    return found


ENGINES = ("local", "ray", "slurm")


@dataclass
class PoolRun:
    """A pool of one test, and its controllers."""

    machine: Machine
    engine: EngineFixture
    client: AsyncTangram
    name: str
    options: str
    controllers: list[subprocess.Popen[str]] = field(default_factory=list)
    has_ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when `stop` has ended the processes of all nodes. Their leases last for some seconds more."""

    def start_controller(self, *flags: str) -> subprocess.Popen[str]:
        """Start `tangram engine ENGINE` for this pool. Its log is that of the number of the controller."""
        pool = (
            f"{self.name}:{self.options}"
            if "driver=" in self.options
            else f"{self.name}:driver={DRIVER},{self.options}"
        )
        with self._log_file(len(self.controllers)).open("w") as log:
            self.controllers.append(
                subprocess.Popen(
                    [sys.executable, "-m", "arl_tangram.cli", *self.engine.command(), "--pool", pool, *flags],
                    env={key: value for key, value in os.environ.items() if not key.startswith("TANGRAM_")}
                    | {"TANGRAM_DIR": str(self.machine.directory)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )
        return self.controllers[-1]

    def log(self, number: int = 0) -> str:
        return self._log_file(number).read_text()

    async def state(self) -> PoolInfo | None:
        return next((pool for pool in (await self.client.pools()).items if pool.name == self.name), None)

    async def nodes(self) -> list[NodeInfo]:
        return [node for node in (await self.client.nodes()).items if node.pool == self.name]

    async def until_ready(self, count: int, *, timeout_s: float = JOIN_S) -> set[str]:
        """Wait until exactly `count` nodes are ready and nothing else is left of the pool. Return their names."""
        state, nodes = None, []
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    state, nodes = await self.state(), await self.nodes()
                    if state is not None and (state.wanted, state.present, state.ready) == (count, count, count):
                        open_nodes = {node.name for node in nodes if node.alive and not node.cordoned}
                        if len(nodes) == len(open_nodes) == count:
                            return open_nodes
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            logs = "\n".join(self.log(number)[-3000:] for number in range(len(self.controllers)))
            raise AssertionError(f"not {count} nodes: {state}, {nodes}\n{logs}") from None

    async def until(self, holds: Callable[[], Awaitable[bool]], *, timeout_s: float = JOIN_S) -> None:
        """Wait for a condition that asks the system."""
        async with asyncio.timeout(timeout_s):
            while not await holds():
                await asyncio.sleep(POLL_S)

    async def run_on_each(self, names: set[str]) -> None:
        """Run actions until each of these nodes has run one. All must succeed."""
        done: set[str] = set()
        async with asyncio.timeout(JOIN_S):
            while not done >= names:
                actions = await asyncio.gather(*(self.run(0.3) for _ in range(4 * len(names))))
                done |= {action.node or "" for action in actions}

    async def run(self, seconds: float, **options: Unpack[ExecOptions]) -> Action:
        """Run one action without retries; it must succeed."""
        async with asyncio.timeout(JOIN_S):
            action = await self.client.run(task=self.name, argv=["sleep", str(seconds)], **options)
        assert action.outcome == "ok", action
        return action

    async def stop(self) -> None:
        """Stop all controllers, and then all nodes of the pool."""
        for controller in self.controllers:
            if controller.poll() is None:
                controller.send_signal(signal.SIGTERM)
                controller.send_signal(signal.SIGCONT)
        for controller in self.controllers:
            controller.wait(timeout=30)
        try:
            last, number = self.start_controller("--stop-nodes"), len(self.controllers) - 1
            await eventually(lambda: f"pool {self.name} is controlled" in self.log(number), timeout_s=30)
            last.send_signal(signal.SIGINT)
            await eventually(lambda: not self.engine.process_ids(self.name), timeout_s=JOIN_S)
            self.has_ended.set()
            await eventually(lambda: last.poll() is not None, timeout_s=JOIN_S)
            assert (last.returncode, await self.nodes()) == (0, []), self.log(number)
            await self.client.remove_pool(self.name)
        finally:
            self._kill_everything()

    def _kill_everything(self) -> None:
        """Leave nothing behind after a test that failed."""
        for controller in self.controllers:
            if controller.poll() is None:
                controller.kill()
                controller.wait()
        for pid in self.engine.process_ids(self.name).values():
            os.kill(pid, signal.SIGKILL)

    def _log_file(self, number: int) -> Path:
        return self.machine.directory / "logs" / f"controller-{self.name}-{number}.log"
