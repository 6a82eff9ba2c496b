"""What the scheduler knows of actions, nodes and environments.

All amounts are integers: `cpu_milli` (milli-cores), `memory_mib`, `disk_mib`, `gpu` (devices),
`slots:SERVICE`, `calls:ENDPOINT`, and whatever else nodes declare. Times are seconds of the database's clock, as a
float since the epoch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from arl_core.domain.elasticity import Elasticity

__all__ = [
    "ENVIRONMENT_RESOURCES",
    "ActionClass",
    "ElasticResource",
    "ExclusiveService",
    "Fence",
    "Gang",
    "Grant",
    "NodeResources",
    "PinnedEnvironment",
    "QueuedAction",
    "Reservation",
    "ResidentService",
    "ResizeDecision",
    "ResizeSupport",
    "ResourceDemand",
    "ResourceShape",
    "Resources",
    "RunningAction",
    "SchedulingPlan",
    "TrajectoryName",
    "TrajectoryPod",
    "action_resources",
    "call_resource",
    "counted_resource",
    "environment_resources",
    "is_slot_resource",
    "slot_resource",
]


class Fence(NamedTuple):
    """`grant_no` rises with every grant; whoever lost a fence can change nothing any more."""

    action_id: UUID
    grant_no: int


Resources = Mapping[str, int]

_SLOT_PREFIX = "slots:"
"""What the slots of a reward service begin with."""
_CALL_PREFIX = "calls:"
"""And calls of an endpoint."""

TrajectoryName = tuple[int, str]
"""Task and trajectory: what a persistent environment is called, and a pod."""

ENVIRONMENT_RESOURCES = frozenset({"memory_mib", "disk_mib"})
"""A persistent environment holds these from its first grant until it ends; an exec in it holds the rest."""


def environment_resources(resources: Resources) -> dict[str, int]:
    """What a persistent environment holds of its first action's amounts."""
    return {resource: amount for resource, amount in resources.items() if resource in ENVIRONMENT_RESOURCES}


def action_resources(resources: Resources) -> dict[str, int]:
    """What an action in a persistent environment holds itself."""
    return {resource: amount for resource, amount in resources.items() if resource not in ENVIRONMENT_RESOURCES}


def slot_resource(service: str) -> str:
    """The resource that an action of this reward service demands."""
    return _SLOT_PREFIX + service


def call_resource(endpoint: str) -> str:
    """The resource that a call of this endpoint demands: one in flight, and one of its rate where it has one."""
    return _CALL_PREFIX + endpoint


def is_slot_resource(resource: str) -> bool:
    return resource.startswith(_SLOT_PREFIX)


def counted_resource(resources: Resources) -> str | None:
    """The slots or the calls among them, if there are any."""
    for resource in resources:
        if resource.startswith((_SLOT_PREFIX, _CALL_PREFIX)):
            return resource
    return None


class ResourceShape(StrEnum):
    """How amounts are placed on a node."""

    DIVISIBLE = "divisible"  # any amount up to what is free: cores, memory, bandwidth
    GROUP = "group"  # an aligned group of whole devices: GPUs
    QUOTA = "quota"  # counts that no topology constrains: slots, concurrency


class ResizeSupport(StrEnum):
    """Whether an action takes new amounts while it runs."""

    NONE = "none"
    GROW = "grow"  # it starts as many workers as it may ever use, but stopping some would stop it
    ANY = "any"


@dataclass(frozen=True, slots=True)
class ElasticResource:
    """The one resource of a demand that may grow: its choices in rising order, and what growing brings."""

    resource: str
    amounts: tuple[int, ...]
    elasticity: Elasticity
    resizable: ResizeSupport = ResizeSupport.NONE

    def __post_init__(self) -> None:
        if not self.amounts or list(self.amounts) != sorted(set(self.amounts)):
            raise ValueError("the amounts of an elastic resource are distinct and in rising order")


@dataclass(frozen=True, slots=True)
class ResourceDemand:
    """A vector of minimum amounts, at most one of them elastic."""

    minimum: Resources
    elastic: ElasticResource | None = None

    def __post_init__(self) -> None:
        if any(amount < 0 for amount in self.minimum.values()):
            raise ValueError("amounts are never negative")
        if self.elastic is not None and self.minimum.get(self.elastic.resource) != self.elastic.amounts[0]:
            raise ValueError("the smallest elastic amount is the minimum of its resource")


@dataclass(frozen=True, slots=True)
class ExclusiveService:
    """A model that an exclusive score action needs on all devices of its group."""

    name: str
    fixed_s: float
    """Of a restore, however many devices there are."""
    device_s: float
    """Of a restore to one device; several devices are written to at once."""

    def restore_s(self, devices: int) -> float:
        """Seconds to bring its weights from host memory to a group of so many devices."""
        return self.fixed_s + self.device_s / devices


@dataclass(frozen=True, slots=True)
class ResidentService:
    """A service whose weights are on a group of devices, in use or left there until others need them."""

    service: ExclusiveService
    devices: tuple[int, ...]
    used_at: float
    """When an action last began or ended on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionClass:
    """Actions of one kind and demand shape: learnt from and scheduled together."""

    key: int
    kind: str
    shape: ResourceShape
    demand: ResourceDemand
    requires: frozenset[str] = frozenset()
    """What its node must enforce or have."""
    service: ExclusiveService | None = None
    """For the group shape: what has to be resident on its devices."""
    is_mixed: bool = False
    """Of several programs, as many are not told apart: what one took says little of the next."""
    resizable: ResizeSupport = field(init=False, repr=False, compare=False)
    """Of its elastic resource; `NONE` where it has none."""

    def __post_init__(self) -> None:
        elastic = self.demand.elastic
        object.__setattr__(self, "resizable", elastic.resizable if elastic is not None else ResizeSupport.NONE)


class PinnedEnvironment(NamedTuple):
    """A persistent environment: pinned to its node, holding memory and disk, no cores."""

    id: UUID
    node: int | None
    """None until its first action is granted."""


@dataclass(frozen=True, slots=True)
class Gang:
    """So many actions that start in one round or not at all. Each is outside of kept environments."""

    id: UUID
    size: int


class QueuedAction(NamedTuple):
    """A queued action that may start now, as far as its environment is concerned."""

    id: UUID
    cls: ActionClass
    task: int
    submitted: float
    grant_no: int
    """Grants so far; the next fence carries one more."""
    priority: int = 0
    deadline: float | None = None
    environment: PinnedEnvironment | None = None
    """None for an ephemeral environment, which is made and ended with the action."""
    trajectory: TrajectoryName | None = None
    trajectory_started_at: float | None = None
    """When the first action of its trajectory was submitted, as far as is known."""
    gang: Gang | None = None
    """None of one that was granted before, too: it is started again by itself."""
    gang_members: tuple["QueuedAction", ...] = ()
    """The others of its gang. It stands for all of them: where it is looked at, they are."""


class RunningAction(NamedTuple):
    """A granted or running action and what it holds."""

    fence: Fence
    cls: ActionClass | None
    node: int
    resources: Resources
    granted: float
    task: int
    allocated_since: float
    """When its amounts last changed: when it was granted, at first."""
    started: float | None = None
    remaining_work: float = 1.0
    """The part of its work that was left then, as far as estimates tell."""
    overrun: float = 0.0
    """0 of one that takes no longer than others of its class; 1 of a straggler, 2 of one nobody counts on any more."""
    resizing_to: Resources | None = None
    """What it will have once a resize that is under way is confirmed; until then it holds the larger of both."""
    in_environment: bool = False
    """Its memory and disk are its environment's, and are not given back when it ends."""


class Reservation(NamedTuple):
    """Of a node, for an action that fits nowhere and that nothing may overtake any more."""

    node: int
    since: float
    """Who was granted something there later started beside it, or was to be over before it could start."""


@dataclass(frozen=True, slots=True)
class TrajectoryPod:
    """A trajectory's share of a node, held from its first action until its environment ends."""

    node: int
    is_busy: bool
    """An action of the trajectory has the pod's cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResources:
    """One node's worth of a manager's resources."""

    node: int
    kind: str
    shape: ResourceShape
    capacity: Resources
    available: Resources
    is_schedulable: bool = True
    """False while cordoned, draining or without a lease: nothing new is placed here."""
    is_serving: bool = True
    """What lives here may go on; False without a lease and past the deadline of a drain."""
    environments: int = 0
    enforced: frozenset[str] = frozenset()
    available_devices: tuple[int, ...] = ()
    """For the group shape: indices of devices that no group holds."""
    resident_services: tuple[ResidentService, ...] = ()
    """For the group shape: no two of them share a device."""
    warm_slots: frozenset[str] = frozenset()
    """Slots of which the service is on a device already, as `slots_of` names them."""


class Grant(NamedTuple):
    """This action, this node, these amounts, this fence."""

    fence: Fence
    node: int
    resources: Resources
    environment: UUID | None = None
    devices: tuple[int, ...] = ()
    gang: UUID | None = None
    """With all of these or not at all. They follow one another in a plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeDecision:
    """New amounts of a running action."""

    fence: Fence
    resources: Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingPlan:
    """What a round decided. Grants are in the order in which the policy made them."""

    grants: tuple[Grant, ...] = ()
    resizes: tuple[ResizeDecision, ...] = field(default=())
    watched_nodes: frozenset[int] = frozenset()
    """Nodes where something is held back or asked back for one who waits: the next round looks at them again, for he
    may be gone by then."""
    reserved: Mapping[UUID, Reservation] = field(default_factory=dict)
    """By action; for the next round, which keeps to them."""
