"""Values with sensible defaults, so that a test says only what it is about."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from arl_core.elasticity import Amdahl
from arl_core.fence import Fence
from arl_core.model import ActionClass, Demand, Elastic, Environment, Pool, Running, Shape, Waiting
from arl_core.reclaim import HeldRow, NodeLease
from arl_core.running import RunningIndex
from arl_core.snapshot import Snapshot
from arl_core.states import State
from arl_core.waiting import WaitingIndex
from arl_scheduler.rows import EnvironmentRow, Held, NodeRow, PollResult
from arl_wire.actions import SubmitAction
from arl_wire.internal import QueuedAction

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
    """Ids in order of their number."""
    return UUID(int=number)


def a_class(key: int = 1, *, shape: Shape = Shape.DIVISIBLE, **minimum: int) -> ActionClass:
    amounts = minimum or {"cpu_milli": 1000}
    elastic = None
    if "cpu_milli" in amounts:
        choices = tuple(amounts["cpu_milli"] * width for width in (1, 2, 4) if amounts["cpu_milli"])
        elastic = Elastic("cpu_milli", choices, Amdahl(0.9)) if choices else None
    return ActionClass(key=key, kind="exec", shape=shape, demand=Demand(amounts, elastic))


def an_action(
    number: int,
    *,
    cls: ActionClass | None = None,
    submitted: float | None = None,
    priority: int = 0,
    environment: Environment | None = None,
    **minimum: int,
) -> Waiting:
    chosen = cls or a_class(key=hash(tuple(sorted(minimum.items()))), **minimum)
    return Waiting(
        id=numbered(number),
        cls=chosen,
        task=1,
        submitted=float(number) if submitted is None else submitted,
        grant_no=0,
        priority=priority,
        environment=environment,
    )


def a_pool(node: int = 1, *, shape: Shape = Shape.DIVISIBLE, accepting: bool = True, environments: int = 0,
           devices: Sequence[int] = (), free: Mapping[str, int] | None = None, **capacity: int) -> Pool:  # fmt: skip
    amounts = capacity or {"cpu_milli": 2000}
    return Pool(
        node=node,
        kind="cpu",
        shape=shape,
        capacity=amounts,
        free=dict(free if free is not None else amounts),
        accepting=accepting,
        environments=environments,
        free_devices=tuple(devices),
    )


def a_snapshot(
    *, queued: Sequence[Waiting] = (), pools: Sequence[Pool] = (), running: Sequence[Running] = ()
) -> Snapshot:
    index = WaitingIndex()
    for action in queued:
        index.add(action)
    on_nodes = RunningIndex()
    for each in running:
        on_nodes.add(each)
    return Snapshot(now=1000.0, waiting=index, pools={pool.node: pool for pool in pools}, running=on_nodes)


def a_lease(node: int = 1, *, epoch: UUID = EPOCH, silent_s: float = 0.0, drained: bool = False) -> NodeLease:
    return NodeLease(node=node, epoch=epoch, silent_s=silent_s, drained=drained)


def a_held_row(**changed: Any) -> HeldRow:
    values: dict[str, Any] = {
        "fence": Fence(numbered(1), 1),
        "state": State.RUNNING,
        "node": 1,
        "node_epoch": EPOCH,
        "environment": None,
        "environment_live": True,
        "failures": 0,
        "retries": 0,
    }
    return HeldRow(**(values | changed))


def a_queued_row(
    number: int, *, trajectory: str | None = None, persistent: bool = False, **changed: Any
) -> QueuedAction:
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
    return QueuedAction(**(values | changed))


def a_submission(**changed: Any) -> SubmitAction:
    """As a client would send it."""
    return SubmitAction.model_validate({"task": "t", "argv": ["pytest"]} | changed)


def a_node_row(node: int = 1, **changed: Any) -> NodeRow:
    """A living node of two cores, as the scheduler's poll reads it."""
    values: dict[str, Any] = {
        "id": node,
        "kind": "cpu",
        "url": f"http://n{node}",
        "epoch": EPOCH,
        "capacity": {"cpu_milli": 2000, "memory_mib": 1000, "disk_mib": 1000},
        "enforces": frozenset(),
        "closed": False,
        "last_sign": 1000.0,
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
        "gone": False,
        "deleted": False,
    }
    return EnvironmentRow(**(values | changed))


def a_held_action(fence: Fence, **changed: Any) -> Held:
    """A running ephemeral action, as the scheduler's poll reads it."""
    values: dict[str, Any] = {
        "fence": fence,
        "state": State.RUNNING,
        "queue_id": 1,
        "trajectory": None,
        "class_key": 1,
        "node": 1,
        "node_epoch": EPOCH,
        "amounts": {"cpu_milli": 1000, "memory_mib": 100, "disk_mib": 10},
        "environment": None,
        "failures": 0,
        "retries": 0,
        "granted": 1.0,
        "started": 2.0,
    }
    return Held(**(values | changed))


def a_poll(
    *,
    queued: Sequence[QueuedAction] = (),
    held: Sequence[Held] = (),
    environments: Sequence[EnvironmentRow] = (),
    nodes: Sequence[NodeRow] | None = None,
    mark: int = 1,
) -> PollResult:
    return PollResult(
        now=1000.0,
        mark=mark,
        queued=tuple(queued),
        held=tuple(held),
        cancelled=(),
        nodes=tuple(nodes if nodes is not None else (a_node_row(),)),
        environments=tuple(environments),
    )
