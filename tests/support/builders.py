"""Builders of values with defaults, so that a test names only the fields that it checks."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from arl_core.capacity.running_index import RunningIndex
from arl_core.capacity.snapshot import CellSnapshot
from arl_core.control.reclaim import ActiveAttempt, NodeLease
from arl_core.domain.elasticity import AmdahlScaling
from arl_core.domain.model import (
    ActionClass,
    ElasticResource,
    Fence,
    NodeResources,
    PinnedEnvironment,
    QueuedAction,
    ResourceDemand,
    ResourceShape,
    RunningAction,
)
from arl_core.domain.states import ActionState
from arl_core.queue.queue_index import QueueIndex
from arl_scheduler.queries.poll_result import AllocationRow, EnvironmentRow, NodeRow, PollResult
from arl_wire.actions.action import SubmitActionRequest
from arl_wire.internal.scheduler import QueuedActionRow

__all__ = [
    "EPOCH",
    "a_class",
    "a_held_action",
    "a_held_row",
    "a_lease",
    "a_node_row",
    "a_poll",
    "a_pool",
    "a_queued_row",
    "a_snapshot",
    "a_submission",
    "an_action",
    "an_environment_row",
    "numbered",
]

EPOCH = UUID(int=7)


def numbered(number: int) -> UUID:
    """Return an id whose order is that of its number."""
    return UUID(int=number)


def a_class(key: int = 1, *, shape: ResourceShape = ResourceShape.DIVISIBLE, **minimum: int) -> ActionClass:
    amounts = minimum or {"cpu_milli": 1000}
    elastic = None
    if "cpu_milli" in amounts:
        choices = tuple(amounts["cpu_milli"] * width for width in (1, 2, 4) if amounts["cpu_milli"])
        elastic = ElasticResource("cpu_milli", choices, AmdahlScaling(0.9)) if choices else None
    return ActionClass(key=key, kind="exec", shape=shape, demand=ResourceDemand(amounts, elastic))


def an_action(
    number: int,
    *,
    cls: ActionClass | None = None,
    submitted: float | None = None,
    priority: int = 0,
    environment: PinnedEnvironment | None = None,
    **minimum: int,
) -> QueuedAction:
    chosen = cls or a_class(key=hash(tuple(sorted(minimum.items()))), **minimum)
    return QueuedAction(
        id=numbered(number),
        cls=chosen,
        task=1,
        submitted=float(number) if submitted is None else submitted,
        grant_no=0,
        priority=priority,
        environment=environment,
    )


def a_pool(node: int = 1, *, shape: ResourceShape = ResourceShape.DIVISIBLE, accepting: bool = True,
           environments: int = 0, devices: Sequence[int] = (), free: Mapping[str, int] | None = None,
           **capacity: int) -> NodeResources:  # fmt: skip
    amounts = capacity or {"cpu_milli": 2000}
    return NodeResources(
        node=node,
        kind="cpu",
        shape=shape,
        capacity=amounts,
        available=dict(free if free is not None else amounts),
        is_schedulable=accepting,
        environments=environments,
        available_devices=tuple(devices),
    )


def a_snapshot(
    *, queued: Sequence[QueuedAction] = (), pools: Sequence[NodeResources] = (), running: Sequence[RunningAction] = ()
) -> CellSnapshot:
    index = QueueIndex()
    for action in queued:
        index.add(action)
    on_nodes = RunningIndex()
    for each in running:
        on_nodes.add(each)
    return CellSnapshot(now=1000.0, queue=index, nodes={pool.node: pool for pool in pools}, running=on_nodes)


def a_lease(node: int = 1, *, epoch: UUID = EPOCH, silent_s: float = 0.0, drained: bool = False) -> NodeLease:
    return NodeLease(node=node, epoch=epoch, silent_s=silent_s, is_drain_expired=drained)


def a_held_row(**changed: Any) -> ActiveAttempt:
    values: dict[str, Any] = {
        "fence": Fence(numbered(1), 1),
        "state": ActionState.RUNNING,
        "node": 1,
        "node_epoch": EPOCH,
        "environment": None,
        "environment_live": True,
        "failures": 0,
        "retries": 0,
    }
    return ActiveAttempt(**(values | changed))


def a_queued_row(
    number: int, *, trajectory: str | None = None, persistent: bool = False, **changed: Any
) -> QueuedActionRow:
    values: dict[str, Any] = {
        "id": numbered(number),
        "queue_id": 1,
        "kind": "exec",
        "trajectory": trajectory,
        "submitted": float(number),
        "class_key": 1,
        "shape": "divisible",
        "demand": {"cpu_milli": 1000, "memory_mib": 100, "disk_mib": 10},
        "environment": {"scope": "trajectory" if persistent else "ephemeral"},
    }
    return QueuedActionRow(**(values | changed))


def a_submission(**changed: Any) -> SubmitActionRequest:
    """Return a submission as a client sends it."""
    return SubmitActionRequest.model_validate({"task": "t", "argv": ["pytest"]} | changed)


def a_node_row(node: int = 1, **changed: Any) -> NodeRow:
    """Return a live node of two cores, as the scheduler's poll reads it."""
    values: dict[str, Any] = {
        "id": node,
        "name": f"n{node}",
        "kind": "cpu",
        "url": f"http://n{node}",
        "epoch": EPOCH,
        "capacity": {"cpu_milli": 2000, "memory_mib": 1000, "disk_mib": 1000},
        "enforced": frozenset(),
        "is_cordoned": False,
        "last_heartbeat": 1000.0,
    }
    return NodeRow(**(values | changed))


def an_environment_row(id: UUID, trajectory: str = "x", **changed: Any) -> EnvironmentRow:
    values: dict[str, Any] = {
        "id": id,
        "queue_id": 1,
        "trajectory": trajectory,
        "node": 1,
        "memory_mib": 100,
        "disk_mib": 10,
        "created": 1.0,
        "is_ended": False,
        "is_out_of_memory": False,
        "is_delete_requested": False,
    }
    return EnvironmentRow(**(values | changed))


def a_held_action(fence: Fence, **changed: Any) -> AllocationRow:
    """Return a running ephemeral action, as the scheduler's poll reads it."""
    values: dict[str, Any] = {
        "fence": fence,
        "state": ActionState.RUNNING,
        "queue_id": 1,
        "trajectory": None,
        "class_key": 1,
        "node": 1,
        "node_epoch": EPOCH,
        "resources": {"cpu_milli": 1000, "memory_mib": 100, "disk_mib": 10},
        "environment": None,
        "failures": 0,
        "retries": 0,
        "granted": 1.0,
        "started": 2.0,
    }
    return AllocationRow(**(values | changed))


def a_poll(
    *,
    queued: Sequence[QueuedActionRow] = (),
    held: Sequence[AllocationRow] = (),
    environments: Sequence[EnvironmentRow] = (),
    nodes: Sequence[NodeRow] | None = None,
    mark: int = 1,
) -> PollResult:
    return PollResult(
        now=1000.0,
        checkpoint=mark,
        queued=tuple(queued),
        allocations=tuple(held),
        cancelled=(),
        nodes=tuple(nodes if nodes is not None else (a_node_row(),)),
        environments=tuple(environments),
    )
