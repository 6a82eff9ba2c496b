"""Values that one poll reads."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

from pydantic import TypeAdapter

from arl_core.capacity.walltime import rounded_time_limit_s, time_left_s
from arl_core.control.rate_limits import RateLimit
from arl_core.domain.elasticity import AmdahlScaling, DurationTable, Elasticity, NoScaling
from arl_core.domain.model import (
    ActionClass,
    CpuSharing,
    ElasticResource,
    Fence,
    NodeResources,
    ResizeSupport,
    ResourceDemand,
    Resources,
    ResourceShape,
    call_resource,
    slot_resource,
)
from arl_core.domain.states import ENVIRONMENT_OUT_OF_MEMORY, ActionState
from arl_core.images.references import is_image_name
from arl_core.queue.fairness import QueueWeight
from arl_core.queue.quotas import TaskQuota
from arl_store.values import parse_uuid
from arl_wire.actions.action import HOST_TEMPLATE
from arl_wire.internal.scheduler import QueuedActionRow, TrajectoryHintsPayload

__all__ = [
    "AllocationRow",
    "EnvironmentRow",
    "NodeImageRow",
    "NodeRow",
    "PollResult",
    "ResizeUpdate",
    "parse_poll_result",
    "parse_queued_rows",
    "required_image",
    "required_templates",
    "to_action_class",
    "to_elastic_resource",
    "to_node_resources",
]

SHAPE_OF_KIND = {"gpu": ResourceShape.QUOTA, "api": ResourceShape.QUOTA}
"""Shape of the resources of a node, by kind of node; all other kinds are divisible."""
MAX_PARALLELISM_OPTIONS = 33
"""Maximum number of amounts of an elastic resource to consider, from its minimum to its maximum."""
RATE_BOUNDS_PER_S, BURST_BOUNDS = (1e-6, 1e6), (1, 1_000_000)
"""Bounds of accepted rates: tokens per second, and burst tokens after a pause."""

_QUEUED_ADAPTER = TypeAdapter(list[QueuedActionRow])
_TEMPLATE_PREFIX = "template:"
_TEMPLATE, _NODE = _TEMPLATE_PREFIX + "{}", "node:{}"
"""Requirements on a node: that it has a template, or that it is one specific node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """A node with a heartbeat, as one poll read it."""

    id: int
    name: str
    kind: str
    url: str
    epoch: UUID
    capacity: Mapping[str, int]
    enforced: frozenset[str]
    """Requirements that the node satisfies: limits that it enforces, and its templates."""
    is_cordoned: bool
    """Cordoned or draining: it gets no new environments, and existing ones continue."""
    last_heartbeat: float
    """Last heartbeat, or the start of Postgres if later: no heartbeat was possible before it."""
    credential_id: str | None = None
    """Id of the credentials of a node that joined."""
    is_drain_expired: bool = False
    """True if its drain deadline has passed: nothing on it continues."""
    ends_at: float | None = None
    """Time at which the machine ends the node; None if it has no known end."""
    rate_limits: Mapping[str, RateLimit] = field(default_factory=dict)
    """Rate limits of its resources: tokens that each grant spends additionally."""
    resident_services: frozenset[str] = frozenset()
    """Reward services that are loaded or being restored on its devices."""
    reclaimable_milli: int = 0
    """Milli-cores that are allocated to actions with shared cores and not used by them."""

    @property
    def grantable(self) -> Mapping[str, int]:
        """Return the amounts that all grants together may have: the capacity and what running actions do not use."""
        if not self.reclaimable_milli:
            return self.capacity
        return {**self.capacity, "cpu_milli": self.capacity.get("cpu_milli", 0) + self.reclaimable_milli}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeImageRow:
    """An image on a node, as one poll read it."""

    node: int
    name: str
    state: Literal["wanted", "pulling", "ready", "failed"]
    reason: str | None
    message: str | None
    bytes: int | None
    bytes_done: int
    changed_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentRow:
    """A persistent environment, as one poll read it."""

    id: UUID
    queue_id: int
    trajectory: str
    node: int
    memory_mib: int
    disk_mib: int
    created: float
    is_ended: bool
    is_out_of_memory: bool
    """True if a program of the environment ended it by using up its memory."""
    """True if ended or lost."""
    is_delete_requested: bool
    """True if the client requested its deletion: it then leaves no tombstone."""
    ended: float | None = None
    """Time at which it ended or at which its deletion was requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRow:
    """A granted or running action, as one poll read it."""

    fence: Fence
    state: ActionState
    queue_id: int
    trajectory: str | None
    class_key: int
    node: int
    node_epoch: UUID
    resources: Mapping[str, int]
    environment: UUID | None
    failures: int
    retries: int
    granted: float
    started: float | None
    cls: ActionClass | None = None
    """The class; only for a new leader, which may not have seen it in the queue."""
    resize_seq: int = 0
    step: int | None = None
    """Training step; only for a new leader, like the class."""
    hints: TrajectoryHintsPayload | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PollResult:
    """One snapshot of all rows that the leader needs."""

    now: float
    checkpoint: int
    queued: tuple[QueuedActionRow, ...]
    allocations: tuple[AllocationRow, ...]
    cancelled: tuple[UUID, ...]
    nodes: tuple[NodeRow, ...]
    environments: tuple[EnvironmentRow, ...]
    paused: frozenset[int] = frozenset()
    """Paused queues."""
    weights: Mapping[int, QueueWeight] = field(default_factory=dict)
    """Weights by queue."""
    quotas: Mapping[int, TaskQuota] = field(default_factory=dict)
    """Quotas of the queues that have one."""
    ended_steps: tuple[tuple[int, int, float], ...] = ()
    """Queue, step and time of the end of steps that clients ended."""
    images: tuple[NodeImageRow, ...] = ()
    """Rows of the images that the poll asked for."""


@dataclass(frozen=True, slots=True)
class ResizeUpdate:
    """New amounts of a row, with the number of the resize. A number that is not above the last is stale."""

    fence: Fence
    resources: Resources
    seq: int


def parse_poll_result(row: Any) -> PollResult:
    """Return the values of a row of the poll."""
    images = tuple(_parse_image(entry) for entry in json.loads(row.images))
    ready = {(image.node, _TEMPLATE.format(image.name)) for image in images if image.state == "ready"}
    return PollResult(
        now=row.now,
        checkpoint=int(row.mark),
        queued=tuple(parse_queued_rows(row.queued)),
        allocations=tuple(_parse_allocation(entry) for entry in json.loads(row.held)),
        cancelled=tuple(parse_uuid(entry) for entry in json.loads(row.cancelled)),
        nodes=tuple(
            _parse_node(entry, frozenset(image for node, image in ready if node == entry["id"]))
            for entry in json.loads(row.nodes)
        ),
        images=images,
        environments=tuple(_parse_environment(entry) for entry in json.loads(row.environments)),
        paused=frozenset(json.loads(row.paused)),
        weights={entry.pop("id"): QueueWeight(**entry) for entry in json.loads(row.weights)},
        quotas={entry["id"]: _parse_quota(entry["quota"]) for entry in json.loads(row.quotas)},
        ended_steps=tuple((entry["queue_id"], entry["step"], entry["ended"]) for entry in json.loads(row.ended_steps)),
    )


def _parse_image(entry: Mapping[str, Any]) -> NodeImageRow:
    return NodeImageRow(
        node=entry["node_id"],
        name=entry["name"],
        state=entry["state"],
        reason=entry["reason"],
        message=entry["message"],
        bytes=entry["bytes"],
        bytes_done=entry["bytes_done"],
        changed_at=entry["changed"],
    )


def _parse_quota(entry: Mapping[str, Any]) -> TaskQuota:
    services = {slot_resource(name): most for name, most in entry.get("reward_services", {}).items()}
    calls = {call_resource(name): most for name, most in entry.get("endpoints", {}).items()}
    return TaskQuota(actions=entry.get("running"), resources=services | calls)


def parse_queued_rows(content: str) -> list[QueuedActionRow]:
    """Parse a JSON list of queued rows."""
    return _QUEUED_ADAPTER.validate_json(content)


def to_node_resources(
    row: NodeRow, *, available: Resources, is_alive: bool, environment_count: int, now: float
) -> NodeResources:
    """Return the resources of a node that a round may use at the time `now`."""
    return NodeResources(
        node=row.id,
        kind=row.kind,
        shape=SHAPE_OF_KIND.get(row.kind, ResourceShape.DIVISIBLE),
        capacity=row.capacity,
        available=available,
        is_schedulable=is_alive and not row.is_cordoned,
        is_serving=is_alive and not row.is_drain_expired,
        enforced=row.enforced,
        environments=environment_count,
        time_left_s=time_left_s(row.ends_at, now),
        warm_slots=frozenset(map(slot_resource, row.resident_services)),
    )


def to_action_class(action: QueuedActionRow) -> ActionClass:
    """Return the class of a queued row."""
    fields = ("class_key", "kind", "shape", "demand", "elastic", "cpu_sharing", "environment", "timeout_s")
    return _parse_class({name: getattr(action, name) for name in fields})


def _parse_class(spec: Mapping[str, Any]) -> ActionClass:
    elastic, sharing, environment = spec["elastic"], spec["cpu_sharing"], spec["environment"]
    return ActionClass(
        key=spec["class_key"],
        kind=spec["kind"],
        shape=ResourceShape(spec["shape"]),
        demand=ResourceDemand(minimum=dict(spec["demand"]), elastic=to_elastic_resource(elastic) if elastic else None),
        sharing=CpuSharing(**sharing) if sharing else None,
        requires=frozenset(environment.get("require", ())) | _required_templates(environment),
        time_limit_s=rounded_time_limit_s(spec["timeout_s"]),
    )


def _required_templates(environment: Mapping[str, Any]) -> frozenset[str]:
    """Return the required template and node. `host` is on every node; a snapshot is on one node."""
    name, node = environment.get("template") or HOST_TEMPLATE, environment.get("node")
    template = frozenset() if name == HOST_TEMPLATE else frozenset({_TEMPLATE.format(name)})
    return template if node is None else template | {_NODE.format(node)}


def required_image(cls: ActionClass) -> str | None:
    """Return the image that actions of the class need, or None."""
    names = (each.removeprefix(_TEMPLATE_PREFIX) for each in required_templates(cls))
    return next(filter(is_image_name, names), None)


def required_templates(cls: ActionClass) -> frozenset[str]:
    """Return the requirements of the class that name a template or image."""
    return frozenset(each for each in cls.requires if each.startswith(_TEMPLATE_PREFIX))


def _enforced(entry: Mapping[str, Any]) -> frozenset[str]:
    limits = {each["name"] for each in entry["enforced"] if each["level"] == "enforced"}
    templates = {_TEMPLATE.format(each["name"]) for each in entry["templates"]}
    return frozenset(limits | templates | {_NODE.format(entry["id"])})


def to_elastic_resource(entry: Mapping[str, Any]) -> ElasticResource:
    """Return the elastic resource that admission wrote."""
    every = [*range(entry["min"], entry["max"], entry["step"]), entry["max"]]
    amounts = sorted(
        {every[round(at * (len(every) - 1) / (MAX_PARALLELISM_OPTIONS - 1))] for at in range(MAX_PARALLELISM_OPTIONS)}
    )
    resizable = ResizeSupport(entry.get("resizable", ResizeSupport.NONE))
    return ElasticResource(entry["resource"], tuple(amounts), _parse_elasticity(entry["elasticity"]), resizable)


def _parse_elasticity(entry: Mapping[str, Any]) -> Elasticity:
    match entry["model"]:
        case "amdahl":
            return AmdahlScaling(entry["parallel_fraction"])  # of cores
        case "table":
            return DurationTable.from_mapping({int(amount): seconds for amount, seconds in entry["seconds"].items()})
        case _:
            return NoScaling()


def _parse_allocation(entry: Mapping[str, Any]) -> AllocationRow:
    spec = entry["spec"]
    hints = spec["hints"] if spec is not None else None
    return AllocationRow(
        fence=Fence(parse_uuid(entry["id"]), entry["grant_no"]),
        state=ActionState(entry["state"]),
        queue_id=entry["queue_id"],
        trajectory=entry["trajectory"],
        class_key=entry["class_key"],
        node=entry["node_id"],
        node_epoch=parse_uuid(entry["node_epoch"]),
        resources=entry["amounts"],
        environment=parse_uuid(entry["environment_id"]) if entry["environment_id"] else None,
        failures=entry["failures"],
        retries=entry["retries"],
        granted=entry["granted"],
        started=entry["started"],
        cls=_parse_class(spec) if spec is not None else None,
        resize_seq=entry["amounts_seq"],
        step=spec["step"] if spec is not None else None,
        hints=TrajectoryHintsPayload.model_validate(hints) if hints is not None else None,
    )


def _parse_node(entry: Mapping[str, Any], images: frozenset[str]) -> NodeRow:
    return NodeRow(
        id=entry["id"],
        name=entry["name"],
        kind=entry["kind"],
        url=entry["url"],
        credential_id=entry["credential_id"],
        epoch=parse_uuid(entry["epoch"]),
        capacity=entry["capacity"],
        enforced=_enforced(entry) | images,
        is_cordoned=entry["closed"],
        is_drain_expired=entry["drained"],
        last_heartbeat=entry["last_sign"],
        ends_at=entry["ends_at"],
        reclaimable_milli=entry["reclaimable_milli"],
        rate_limits=_parse_rates(entry["rates"], entry["capacity"]),
        resident_services=frozenset(entry["resident"]),
    )


def _parse_rates(content: Any, capacity: Mapping[str, int]) -> dict[str, RateLimit]:
    """Return the valid rates of the node's resources.

    Invalid ones are skipped, so that one node cannot stop the rounds.
    """
    entries = content.items() if isinstance(content, dict) else ()
    rates = {name: _parse_rate(entry) for name, entry in entries if name in capacity}
    return {name: rate for name, rate in rates.items() if rate is not None}


def _parse_rate(entry: Any) -> RateLimit | None:
    per_s, burst = (entry.get("per_s"), entry.get("burst")) if isinstance(entry, dict) else (None, None)
    if isinstance(per_s, int | float) and isinstance(burst, int | float):
        return RateLimit(per_s=_clamp(per_s, RATE_BOUNDS_PER_S), burst=int(_clamp(burst, BURST_BOUNDS)))
    return None


def _clamp(number: float, bounds: tuple[float, float]) -> float:
    return max(bounds[0], min(bounds[1], number))


def _parse_environment(entry: Mapping[str, Any]) -> EnvironmentRow:
    return EnvironmentRow(
        id=parse_uuid(entry["id"]),
        queue_id=entry["queue_id"],
        trajectory=entry["trajectory"],
        node=entry["node_id"],
        memory_mib=entry["memory_mib"],
        disk_mib=entry["disk_mib"],
        created=entry["created"],
        is_ended=entry["gone"],
        is_out_of_memory=entry["end_reason"] == ENVIRONMENT_OUT_OF_MEMORY,
        is_delete_requested=entry["deleted"],
        ended=entry["ended"],
    )
