"""What one poll reads, as values."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from pydantic import TypeAdapter

from arl_core.elasticity import Amdahl, DurationTable, Elasticity, Inelastic
from arl_core.fairness import QueueWeight
from arl_core.fence import Fence
from arl_core.model import ActionClass, Amounts, Demand, Elastic, Pool, Resizable, Shape, calls_of, slots_of
from arl_core.quotas import Quota
from arl_core.rate import Rate
from arl_core.states import State
from arl_store.ids import parsed
from arl_wire.actions import HOST
from arl_wire.internal import QueuedAction

__all__ = [
    "EnvironmentRow",
    "Held",
    "NewAmounts",
    "NodeRow",
    "PollResult",
    "class_of",
    "elastic_of",
    "poll_result",
    "pool_of",
    "queued_rows",
]

SHAPES = {"gpu": Shape.QUOTA, "api": Shape.QUOTA}
"""Of what a node of a kind has; others have amounts that can be divided."""

WIDTHS = 33
"""Choices of an elastic resource that are looked at, at most, from its least to its most."""

PER_S, BURST = (1e-6, 1e6), (1, 1_000_000)
"""What a rate is taken for at least and at most: tokens a second, and at once after a pause."""

_QUEUED = TypeAdapter(list[QueuedAction])
_TEMPLATE, _NODE = "template:{}", "node:{}"
"""Among what is required of a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    id: int
    kind: str
    url: str
    epoch: UUID
    capacity: Mapping[str, int]
    enforces: frozenset[str]
    """What an action may require of it: limits that it holds, templates that it has."""
    closed: bool
    """Cordoned or draining: nothing new goes there, what lives there goes on."""
    last_sign: float
    """Last beat, or the start of Postgres if that is later: before it no beat was possible."""
    drained: bool = False
    """It was to be empty by now: nothing of it goes on."""
    rates: Mapping[str, Rate] = field(default_factory=dict)
    """Of what it has: tokens that each grant spends besides."""
    resident: frozenset[str] = frozenset()
    """Reward services on its devices, or on their way there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentRow:
    id: UUID
    queue_id: int
    trajectory: str
    node: int
    memory_mib: int
    disk_mib: int
    created: float
    gone: bool
    """Ended or lost."""
    deleted: bool
    """The client asked for its end, so a gone one leaves no tombstone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    fence: Fence
    state: State
    queue_id: int
    trajectory: str | None
    class_key: int
    node: int
    node_epoch: UUID
    amounts: Mapping[str, int]
    environment: UUID | None
    failures: int
    retries: int
    granted: float
    started: float | None
    cls: ActionClass | None = None
    """Only where a leader begins and may not have seen it in the queue."""
    amounts_seq: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PollResult:
    now: float
    mark: int
    queued: tuple[QueuedAction, ...]
    held: tuple[Held, ...]
    cancelled: tuple[UUID, ...]
    nodes: tuple[NodeRow, ...]
    environments: tuple[EnvironmentRow, ...]
    paused: frozenset[int] = frozenset()
    """Queues of which nothing starts."""
    weights: Mapping[int, QueueWeight] = field(default_factory=dict)
    """Of each queue."""
    quotas: Mapping[int, Quota] = field(default_factory=dict)
    """Of the queues that have one."""


@dataclass(frozen=True, slots=True)
class NewAmounts:
    """What a row is to say. The number is that of the resize; one that is not above the last is stale."""

    fence: Fence
    amounts: Amounts
    seq: int


def poll_result(row: Any) -> PollResult:
    return PollResult(
        now=row.now,
        mark=int(row.mark),
        queued=tuple(queued_rows(row.queued)),
        held=tuple(_held(entry) for entry in json.loads(row.held)),
        cancelled=tuple(parsed(entry) for entry in json.loads(row.cancelled)),
        nodes=tuple(_node(entry) for entry in json.loads(row.nodes)),
        environments=tuple(_environment(entry) for entry in json.loads(row.environments)),
        paused=frozenset(json.loads(row.paused)),
        weights={entry.pop("id"): QueueWeight(**entry) for entry in json.loads(row.weights)},
        quotas={entry["id"]: _quota(entry["quota"]) for entry in json.loads(row.quotas)},
    )


def _quota(said: Mapping[str, Any]) -> Quota:
    services = {slots_of(name): most for name, most in said.get("services", {}).items()}
    calls = {calls_of(name): most for name, most in said.get("endpoints", {}).items()}
    return Quota(actions=said.get("running"), resources=services | calls)


def queued_rows(content: str) -> list[QueuedAction]:
    return _QUEUED.validate_json(content)


def pool_of(node: NodeRow, *, free: Amounts, alive: bool, homes: int) -> Pool:
    """What a round may use of a node."""
    return Pool(
        node=node.id,
        kind=node.kind,
        shape=SHAPES.get(node.kind, Shape.DIVISIBLE),
        capacity=node.capacity,
        free=free,
        accepting=alive and not node.closed,
        serving=alive and not node.drained,
        enforces=node.enforces,
        environments=homes,
        at_hand=frozenset(map(slots_of, node.resident)),
    )


def class_of(action: QueuedAction) -> ActionClass:
    fields = ("class_key", "kind", "shape", "demand", "elastic", "environment")
    return _class({name: getattr(action, name) for name in fields})


def _class(spec: Mapping[str, Any]) -> ActionClass:
    elastic, environment = spec["elastic"], spec["environment"]
    return ActionClass(
        key=spec["class_key"],
        kind=spec["kind"],
        shape=Shape(spec["shape"]),
        demand=Demand(minimum=dict(spec["demand"]), elastic=elastic_of(elastic) if elastic else None),
        requires=frozenset(environment.get("require", ())) | _template(environment),
    )


def _template(environment: Mapping[str, Any]) -> frozenset[str]:
    """`host` is everywhere; a snapshot is on one node."""
    name, node = environment.get("template") or HOST, environment.get("node")
    template = frozenset() if name == HOST else frozenset({_TEMPLATE.format(name)})
    return template if node is None else template | {_NODE.format(node)}


def _enforced(entry: Mapping[str, Any]) -> frozenset[str]:
    limits = {each["name"] for each in entry["enforced"] if each["level"] == "enforced"}
    templates = {_TEMPLATE.format(each["name"]) for each in entry["templates"]}
    return frozenset(limits | templates | {_NODE.format(entry["id"])})


def elastic_of(entry: Mapping[str, Any]) -> Elastic:
    """As admission wrote it."""
    every = [*range(entry["min"], entry["max"], entry["step"]), entry["max"]]
    amounts = sorted({every[round(at * (len(every) - 1) / (WIDTHS - 1))] for at in range(WIDTHS)})
    resizable = Resizable(entry.get("resizable", Resizable.NONE))
    return Elastic(entry["resource"], tuple(amounts), _elasticity(entry["elasticity"]), resizable)


def _elasticity(entry: Mapping[str, Any]) -> Elasticity:
    match entry["model"]:
        case "amdahl":
            return Amdahl(entry["parallel_fraction"])
        case "table":
            return DurationTable.of({int(amount): seconds for amount, seconds in entry["seconds"].items()})
        case _:
            return Inelastic()


def _held(entry: Mapping[str, Any]) -> Held:
    return Held(
        fence=Fence(parsed(entry["id"]), entry["grant_no"]),
        state=State(entry["state"]),
        queue_id=entry["queue_id"],
        trajectory=entry["trajectory"],
        class_key=entry["class_key"],
        node=entry["node_id"],
        node_epoch=parsed(entry["node_epoch"]),
        amounts=entry["amounts"],
        environment=parsed(entry["environment_id"]) if entry["environment_id"] else None,
        failures=entry["failures"],
        retries=entry["retries"],
        granted=entry["granted"],
        started=entry["started"],
        cls=_class(entry["spec"]) if entry["spec"] is not None else None,
        amounts_seq=entry["amounts_seq"],
    )


def _node(entry: Mapping[str, Any]) -> NodeRow:
    return NodeRow(
        id=entry["id"],
        kind=entry["kind"],
        url=entry["url"],
        epoch=parsed(entry["epoch"]),
        capacity=entry["capacity"],
        enforces=_enforced(entry),
        closed=entry["closed"],
        drained=entry["drained"],
        last_sign=entry["last_sign"],
        rates=_rates(entry["rates"], entry["capacity"]),
        resident=frozenset(entry["resident"]),
    )


def _rates(said: Any, capacity: Mapping[str, int]) -> dict[str, Rate]:
    """What a manager says here that is no rate of anything it has is passed over: rounds are everybody's."""
    entries = said.items() if isinstance(said, dict) else ()
    rates = {name: _rate(entry) for name, entry in entries if name in capacity}
    return {name: rate for name, rate in rates.items() if rate is not None}


def _rate(entry: Any) -> Rate | None:
    per_s, burst = (entry.get("per_s"), entry.get("burst")) if isinstance(entry, dict) else (None, None)
    if isinstance(per_s, int | float) and isinstance(burst, int | float):
        return Rate(per_s=_between(per_s, PER_S), burst=int(_between(burst, BURST)))
    return None


def _between(number: float, bounds: tuple[float, float]) -> float:
    return max(bounds[0], min(bounds[1], number))


def _environment(entry: Mapping[str, Any]) -> EnvironmentRow:
    return EnvironmentRow(
        id=parsed(entry["id"]),
        queue_id=entry["queue_id"],
        trajectory=entry["trajectory"],
        node=entry["node_id"],
        memory_mib=entry["memory_mib"],
        disk_mib=entry["disk_mib"],
        created=entry["created"],
        gone=entry["gone"],
        deleted=entry["deleted"],
    )
