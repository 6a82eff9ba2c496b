"""The interface of an engine, and the values that cross it.

An engine starts one `tangram node up` per node and nothing per action. It knows which processes it has; whether a node
is alive is decided by the node's lease in Postgres. A further engine is one module that follows `ClusterEngine`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal, Protocol

__all__ = [
    "ClusterEngine",
    "ClusterEngineError",
    "EngineCapabilities",
    "EngineNode",
    "EngineNodeState",
    "NodeCommand",
    "NodeCommands",
    "NodeRequest",
    "PoolSpec",
]


class ClusterEngineError(Exception):
    """An engine could not do what it was asked for. The controller tries again."""


class EngineNodeState(StrEnum):
    """The state of a node's process, as the engine sees it."""

    WAITING = "waiting"
    """The engine waits for a machine, such as in the queue of a batch system. The node may start late."""
    STARTING = "starting"
    """The process runs or will be started again soon."""
    RUNNING = "running"
    STOPPING = "stopping"
    """The node was released; its process has not ended yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSpec:
    """A pool: nodes of one kind, and the limits of its size."""

    name: str
    kind: Literal["cpu", "gpu", "api"] = "cpu"
    min_nodes: int = 1
    max_nodes: int = 1
    cores: int | None = None
    """Cores of each node. None: all cores that the node finds."""
    driver: str | None = None
    """Driver of CPU nodes. None: the default of `tangram node up`."""
    target_s: float = 30.0
    """Seconds in which the waiting actions should have started."""
    cooldown_s: float = 60.0
    """Seconds for which fewer nodes must have been enough before the pool shrinks."""
    drain_s: float = 1800.0
    """Seconds that environments and actions of a drained node have to end."""

    @property
    def is_fixed(self) -> bool:
        """Return True if the number of nodes never changes."""
        return self.min_nodes == self.max_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCapabilities:
    """Capabilities of an engine."""

    elastic: bool
    """The number of nodes can change while the engine runs."""
    victim_choice: bool
    """A particular node can be released."""
    preemption_notice: bool
    """The engine announces the loss of a node before it happens."""
    restarts_manager: bool
    """A node whose process ended is started again under its name."""
    root: bool
    """Nodes run as root."""
    cgroup: bool
    """Nodes have a cgroup subtree of their own."""
    gpu: bool
    """Nodes may use GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineNode:
    """A node that the engine has."""

    name: str
    """Name under which the node registers."""
    pool: str
    state: EngineNodeState
    engine_id: str
    """Identifier inside the engine, such as a process id or a job number."""
    restarts: int = 0
    reason: str = ""
    """Reason for the last restart or failure."""


class ClusterEngine(Protocol):
    """An engine. Every method may be repeated, and by another controller: the engine keeps no state in memory only."""

    name: str
    capabilities: EngineCapabilities

    async def ensure(self, pool: PoolSpec, count: int) -> str:
        """Start nodes until the pool has `count` nodes that are not stopping, and restart those that ended.

        The number is absolute. Surplus nodes stay: only `release` stops a node. Return what keeps the pool below
        `count`, for the pool's status; empty if nothing does. Raises `ClusterEngineError`.
        """
        ...

    async def nodes(self) -> Sequence[EngineNode]:
        """Return all nodes of all pools, by name."""
        ...

    async def release(self, node: str, deadline_s: float) -> None:
        """Stop a node. It is killed if it has not ended after `deadline_s` seconds. Unknown nodes are ignored.

        The call does not wait for the end. Until then, the node is listed as `stopping`.
        """
        ...

    async def logs(self, node: str, tail: int) -> str:
        """Return the last `tail` lines of a node's output; empty if the node is unknown."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRequest:
    """A node that an engine is about to start."""

    name: str
    pool: PoolSpec
    directory: Path
    """State directory of the node, on the machine of the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCommand:
    """The command of a node. Secrets are in `env`, because other users can read arguments."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)


class NodeCommands(Protocol):
    """The way from a node's name to its command: how a node gets its credentials and is started."""

    async def command_for(self, request: NodeRequest) -> NodeCommand:
        """Return the command that runs the node in the foreground until SIGTERM. Raises `ClusterEngineError`."""
        ...
