"""The Ray engine: at most one node of a pool per Ray node, each kept by a detached actor.

The actor runs `tangram node up` from an environment of this project on the Ray node. The actors and the table of nodes
outlive the controller.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from arl_engines.engine import (
    ClusterEngineError,
    EngineCapabilities,
    EngineNode,
    EngineNodeState,
    NodeCommands,
    NodeRequest,
    PoolSpec,
)
from arl_engines.local.node_record import boot_time_s
from arl_engines.node_names import locked_directory, new_node_name
from arl_engines.node_table import EngineNodeTable

__all__ = ["RayDriver", "RayEngine", "RayOptions"]

KILL_GRACE_S = 10.0
"""Seconds after the deadline of a released node in which its actor may still kill it and remove its directory."""
RESERVED = 0.01
"""Amount of the custom resource that an actor reserves. Ray's autoscaler v2 keeps a node that has an actor."""
REQUEST_EVERY_S = 10.0
"""Seconds between unchanged requests to Ray's autoscaler; a new head has forgotten them."""
AVOID_S = 30.0
"""Seconds for which a Ray node is not used after an actor of the pool vanished there."""
PURGE = "from pathlib import Path; from arl_local.state_dir import StateDir; StateDir(Path('DIRECTORY/state')).purge()"
"""Program that removes the state of a node, with files outside its directory."""

log = logging.getLogger(__name__)


class RayDriver(Protocol):
    """The connection to Ray; see `cluster_driver.RayCluster` for the requests."""

    async def call(self, request: str, **values: Any) -> Any:
        """Return the result of a request. Raises `ClusterEngineError`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """How nodes are placed on Ray nodes."""

    node_python: str
    """Interpreter, on the Ray nodes, of an environment with the server packages."""
    node_directory: str
    """Directory on the Ray nodes for the state of nodes."""
    resource: str | None = None
    """Custom resource of the Ray nodes to use. None: all Ray nodes."""
    autoscale: bool = False
    """Request Ray nodes from Ray's autoscaler. Needs `resource`."""


@dataclass(slots=True, kw_only=True)
class RayNodeRecord:
    """A node on a Ray node."""

    name: str
    pool: str
    ray_node: str
    """Ray's id of the node. A Ray node that starts again has another one."""
    started: bool = False
    """Ray has created its actor. An actor that is missing later was killed by somebody else, or could not run."""
    stop_by_s: float | None = None
    """Seconds since the start of this machine at which the released node is killed; None unless it was released."""

    @property
    def agent(self) -> str:
        """Return the name of its actor. A pool has at most one node on a Ray node."""
        return f"tangram-{self.pool}-{self.ray_node}"


RayNodeTable = EngineNodeTable[RayNodeRecord]


@dataclass(frozen=True, slots=True)
class _View:
    """Report of Ray: its live nodes by id, and the descriptions of agents by name."""

    ray_nodes: Mapping[str, Mapping[str, float]]
    """Resources by id of the Ray node."""
    agents: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def problem_of(self, record: RayNodeRecord) -> str:
        """Return why a node is lost for good; empty if it is not."""
        if record.ray_node not in self.ray_nodes:
            return f"Ray node {record.ray_node} is dead"
        return "its actor was killed or could not run" if record.started and record.agent not in self.agents else ""


class RayEngine:
    """Nodes on the Ray nodes of a cluster."""

    name = "ray"
    capabilities = EngineCapabilities(
        elastic=True,
        victim_choice=True,
        preemption_notice=False,
        restarts_manager=True,
        root=False,
        cgroup=False,
        gpu=True,
    )

    def __init__(self, directory: Path, commands: NodeCommands, driver: RayDriver, options: RayOptions) -> None:
        """Keep the table of nodes in `directory`/ray; names of nodes come from `directory`."""
        self._names = directory.absolute()
        self._directory = self._names / "ray"
        self._commands = commands
        self._driver = driver
        self._options = options
        self._requests: dict[str, int] = {}
        """Wanted nodes of each pool, for Ray's autoscaler."""
        self._requested: tuple[int, float] = (0, float("-inf"))
        """Last number of nodes that was requested, and when."""
        self._avoided: dict[str, float] = {}
        """Time until which no node is placed where an actor vanished, by name of the actor."""

    async def ensure(self, pool: PoolSpec, count: int) -> str:
        """Start nodes on further Ray nodes until there are `count`. Return a message if there are too few Ray nodes.

        Raises `ClusterEngineError`.
        """
        async with locked_directory(self._directory):
            table, view = await self._swept()
            records = table.of_pool(pool.name)
            wanted = [record for record in records if record.stop_by_s is None]
            for record in wanted:
                if not record.started:
                    await self._start(table, record, pool, view)
            taken = {record.agent for record in records}
            usable = sorted(node for node in view.ray_nodes if self._is_usable(pool, view.ray_nodes[node]))
            places = (RayNodeRecord(name="", pool=pool.name, ray_node=node) for node in usable)
            free = [each for each in places if each.agent not in taken and self._may_place(each)]
            missing = max(0, count - len(wanted))
            for record in free[:missing]:
                async with locked_directory(self._names):
                    record.name = new_node_name(self._names, pool.name)
                table.put(record)
                await self._start(table, record, pool, view)
            await self._request(pool, count)
        if missing <= len(free):
            return ""
        having = f" with the resource {self._options.resource}" if self._options.resource else ""
        return f"the Ray cluster has {len(usable)} usable nodes{having}, and {missing - len(free)} more are needed"

    async def nodes(self) -> Sequence[EngineNode]:
        """Return the nodes by name. Released nodes that ended disappear, and nodes whose Ray node is dead."""
        async with locked_directory(self._directory):
            table, view = await self._swept()
        return [_to_engine_node(table.records[name], view) for name in sorted(table.records)]

    async def release(self, node: str, deadline_s: float) -> None:
        """Ask the actor to stop its node. The actor is killed when that is done."""
        async with locked_directory(self._directory):
            table = _read_table(self._directory)
            record = table.records.get(node)
            if record is None or record.stop_by_s is not None:
                return
            record.stop_by_s = boot_time_s() + deadline_s
            table.put(record)
            log.info("%s: stopping", node)
            await self._try("stop", record, deadline_s=deadline_s)

    async def logs(self, node: str, tail: int) -> str:
        """Return the last lines of the output of a node; empty if it is unknown."""
        async with locked_directory(self._directory):
            record = _read_table(self._directory).records.get(node)
        return str(await self._driver.call("logs", agent=record.agent, tail=tail)) if record is not None else ""

    async def _swept(self) -> tuple[RayNodeTable, _View]:
        """Return the table and Ray's view, without nodes that are gone; make released nodes end."""
        status = await self._driver.call("status")
        view = _View({node["id"]: node["resources"] for node in status["nodes"]}, status["agents"])
        table = _read_table(self._directory)
        for record in list(table.records.values()):
            agent = view.agents.get(record.agent)
            problem = view.problem_of(record)
            if agent is not None and (problem or agent["state"] == "ended" or _is_overdue(record)):
                await self._try("kill", record)
            elif agent is not None and record.stop_by_s is not None and agent["state"] in ("starting", "running"):
                await self._try("stop", record, deadline_s=max(0.0, record.stop_by_s - boot_time_s()))
            if agent is not None and not record.started:
                record.started = True
                table.write()
            if record.stop_by_s is not None and (problem or agent is None):
                log.info("%s: stopped", record.name)
                table.drop(record)
            elif problem:
                log.warning("%s: lost: %s", record.name, problem)
                self._avoided[record.agent] = time.monotonic() + AVOID_S
                table.drop(record)
        return table, view

    async def _start(self, table: RayNodeTable, record: RayNodeRecord, pool: PoolSpec, view: _View) -> None:
        directory = Path(self._options.node_directory) / table.namespace / record.name
        command = await self._commands.command_for(
            NodeRequest(name=record.name, pool=pool, directory=directory / "state")
        )
        resources = view.ray_nodes[record.ray_node]
        reserved = self._options.resource
        await self._driver.call(
            "start",
            agent=record.agent,
            node_id=record.ray_node,
            resources={reserved: RESERVED} if reserved else {},
            gpus=resources.get("GPU", 0.0) if pool.kind == "gpu" else 0.0,
            spec={
                "directory": str(directory),
                "argv": [word.replace(str(directory), "DIRECTORY") for word in command.argv],
                "purge": [self._options.node_python, "-P", "-c", PURGE],
                "env": dict(command.env),
            },
        )
        record.started = True
        table.write()
        log.info("%s: started, Ray node %s", record.name, record.ray_node)

    async def _request(self, pool: PoolSpec, count: int) -> None:
        """Request Ray nodes for all pools together from Ray's autoscaler."""
        if not self._options.autoscale:
            return
        self._requests[pool.name] = count
        number, now = sum(self._requests.values()), time.monotonic()
        if number != self._requested[0] or now - self._requested[1] > REQUEST_EVERY_S:
            await self._driver.call("request", resource=self._options.resource, count=number)
            self._requested = number, now

    async def _try(self, request: str, record: RayNodeRecord, **values: Any) -> None:
        """Send a request to the actor of a node. If that fails, the next pass sends it again."""
        try:
            await self._driver.call(request, agent=record.agent, **values)
        except ClusterEngineError as error:
            log.warning("%s: %s: %s", record.name, request, error)

    def _may_place(self, record: RayNodeRecord) -> bool:
        """Return True unless an actor has just vanished at this place."""
        return self._avoided.get(record.agent, 0.0) < time.monotonic()

    def _is_usable(self, pool: PoolSpec, resources: Mapping[str, float]) -> bool:
        """Return True if nodes of the pool may be placed on a Ray node with these resources."""
        if pool.kind == "gpu" and not resources.get("GPU"):
            return False
        return self._options.resource is None or resources.get(self._options.resource, 0.0) >= RESERVED


def _read_table(directory: Path) -> RayNodeTable:
    return RayNodeTable(directory / "nodes.json", RayNodeRecord)


def _is_overdue(record: RayNodeRecord) -> bool:
    return record.stop_by_s is not None and boot_time_s() > record.stop_by_s + KILL_GRACE_S


def _to_engine_node(record: RayNodeRecord, view: _View) -> EngineNode:
    agent = view.agents.get(record.agent, {"state": "starting", "reason": "its actor does not exist"})
    reason = agent.get("reason", "")
    if agent["state"] == "silent":
        reason = reason or "its actor does not answer"
    state = EngineNodeState.RUNNING if agent["state"] == "running" else EngineNodeState.STARTING
    return EngineNode(
        name=record.name,
        pool=record.pool,
        state=EngineNodeState.STOPPING if record.stop_by_s is not None else state,
        engine_id=record.ray_node,
        restarts=agent.get("restarts", 0),
        reason=reason,
    )
