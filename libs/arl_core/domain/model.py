"""Domain model of the scheduler: actions, nodes and environments.

All amounts are integers: `cpu_milli` (milli-cores), `memory_mib`, `disk_mib`, `gpu` (devices), `slots:SERVICE`,
`calls:ENDPOINT`, and any other resource that nodes declare. Times are seconds of the database's clock, as a float since
the epoch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import NamedTuple
from uuid import UUID

from arl_core.domain.elasticity import Elasticity, NoScaling

__all__ = [
    "ENVIRONMENT_RESOURCES",
    "ActionClass",
    "ClassVariant",
    "CpuSharing",
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
    """The token of one attempt. `grant_no` rises with every grant; a writer with an old fence can change nothing."""

    action_id: UUID
    grant_no: int


Resources = Mapping[str, int]

_SLOT_PREFIX = "slots:"
"""Prefix of the slot resources of reward services."""
_CALL_PREFIX = "calls:"
"""Prefix of the call resources of endpoints."""

ClassVariant = tuple[int, float]
"""Key of a class, and the time limit of its actions in seconds."""

TrajectoryName = tuple[int, str]
"""Task and trajectory: the name of a persistent environment or a pod."""

ENVIRONMENT_RESOURCES = frozenset({"memory_mib", "disk_mib"})
"""Resources that a persistent environment occupies from its first grant until it ends; its actions occupy the rest."""


def environment_resources(resources: Resources) -> dict[str, int]:
    """Return the part of its first action's amounts that a persistent environment occupies."""
    return {resource: amount for resource, amount in resources.items() if resource in ENVIRONMENT_RESOURCES}


def action_resources(resources: Resources) -> dict[str, int]:
    """Return the part of the amounts that an action in a persistent environment occupies itself."""
    return {resource: amount for resource, amount in resources.items() if resource not in ENVIRONMENT_RESOURCES}


def slot_resource(service: str) -> str:
    """Return the resource that an action of this reward service demands."""
    return _SLOT_PREFIX + service


def call_resource(endpoint: str) -> str:
    """Return the resource that a call of this endpoint demands: one call in flight, and one token if it has a rate."""
    return _CALL_PREFIX + endpoint


def is_slot_resource(resource: str) -> bool:
    """Return True if the resource is a slot of a reward service."""
    return resource.startswith(_SLOT_PREFIX)


def counted_resource(resources: Resources) -> str | None:
    """Return the slot or call resource in these amounts; None if there is none."""
    for resource in resources:
        if resource.startswith((_SLOT_PREFIX, _CALL_PREFIX)):
            return resource
    return None


class ResourceShape(StrEnum):
    """The way in which amounts are placed on a node."""

    DIVISIBLE = "divisible"  # any amount up to what is free: cores, memory, bandwidth
    GROUP = "group"  # an aligned group of whole devices: GPUs
    QUOTA = "quota"  # counts that no topology constrains: slots, concurrency


class ResizeSupport(StrEnum):
    """The kinds of resize that a running action supports."""

    NONE = "none"
    GROW = "grow"  # the action starts as many workers as it may ever use; it cannot stop some of them
    ANY = "any"


@dataclass(frozen=True, slots=True)
class ElasticResource:
    """The one resource of a demand that may grow: its amounts in rising order, and its effect on the duration."""

    resource: str
    amounts: tuple[int, ...]
    elasticity: Elasticity
    resizable: ResizeSupport = ResizeSupport.NONE

    def __post_init__(self) -> None:
        if not self.amounts or list(self.amounts) != sorted(set(self.amounts)):
            raise ValueError("the amounts of an elastic resource must be distinct and in rising order")

    @property
    def is_undeclared(self) -> bool:
        """Return True for a range of cores without a declared effect on the duration; the effect is then learnt."""
        return self.resource == "cpu_milli" and len(self.amounts) > 1 and isinstance(self.elasticity, NoScaling)


@dataclass(frozen=True, slots=True)
class ResourceDemand:
    """A vector of minimum amounts, at most one of them elastic."""

    minimum: Resources
    elastic: ElasticResource | None = None

    def __post_init__(self) -> None:
        if any(amount < 0 for amount in self.minimum.values()):
            raise ValueError("amounts must not be negative")
        if self.elastic is not None and self.minimum.get(self.elastic.resource) != self.elastic.amounts[0]:
            raise ValueError("the smallest elastic amount must be the minimum of its resource")


@dataclass(frozen=True, slots=True)
class ExclusiveService:
    """A model that an exclusive score action needs on all devices of its group."""

    name: str
    fixed_s: float
    """Seconds of a restore that do not depend on the number of devices."""
    device_s: float
    """Seconds of a restore to one device; several devices are written in parallel."""

    def restore_s(self, devices: int) -> float:
        """Return the seconds to copy the weights from host memory to a group of `devices` devices."""
        return self.fixed_s + self.device_s / devices


@dataclass(frozen=True, slots=True)
class ResidentService:
    """A service with weights on a group of devices, in use or idle until other actions need the devices."""

    service: ExclusiveService
    devices: tuple[int, ...]
    used_at: float
    """Time at which an action last began or ended on the service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSharing:
    """The sharing of cores: the kernel divides the cores of a node that no action has exclusively."""

    guarantee_milli: int
    """Milli-cores that the action gets over any second if it wants them."""
    limit_milli: int | None = None
    """Most milli-cores that the action may use; None without a limit."""
    is_declared: bool = False
    """True if the caller declared the guarantee. The scheduler then counts all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionClass:
    """A class of actions of one kind and demand shape, which share estimates and are scheduled as a group."""

    key: int
    kind: str
    shape: ResourceShape
    demand: ResourceDemand
    requires: frozenset[str] = frozenset()
    """Features that the node must enforce or have."""
    service: ExclusiveService | None = None
    """Service that must be resident on the devices; group shape only."""
    time_limit_s: float = 0.0
    """Seconds for which its actions may run; 0 if unknown. Variants of one class differ in it and share estimates."""
    is_mixed: bool = False
    """True if the class mixes several programs that are not distinguished; past runs then predict little."""
    sharing: CpuSharing | None = None
    """Sharing of cores; None for exclusive cores and for actions without cores."""
    resizable: ResizeSupport = field(init=False, repr=False, compare=False)
    """Resize support of the elastic resource; `NONE` if there is none."""
    is_undeclared: bool = field(init=False, repr=False, compare=False)
    """True if the effect of more cores is not declared."""
    variant: ClassVariant = field(init=False, repr=False, compare=False)
    """Key of the class with its time limit. Actions of one variant may start on the same nodes."""

    def __post_init__(self) -> None:
        elastic = self.demand.elastic
        object.__setattr__(self, "resizable", elastic.resizable if elastic is not None else ResizeSupport.NONE)
        object.__setattr__(self, "is_undeclared", elastic is not None and elastic.is_undeclared)
        object.__setattr__(self, "variant", (self.key, self.time_limit_s))


class PinnedEnvironment(NamedTuple):
    """A persistent environment: pinned to its node, with memory and disk but no cores."""

    id: UUID
    node: int | None
    """Node of the environment; None until its first action is granted."""


@dataclass(frozen=True, slots=True)
class Gang:
    """A number of actions that start in one round or not at all; each runs outside persistent environments."""

    id: UUID
    size: int


class QueuedAction(NamedTuple):
    """A queued action that its environment does not block."""

    id: UUID
    cls: ActionClass
    task: int
    submitted: float
    grant_no: int
    """Number of grants so far; the next fence is one higher."""
    priority: int = 0
    deadline: float | None = None
    environment: PinnedEnvironment | None = None
    """Persistent environment; None for an ephemeral environment, which exists only during the action."""
    trajectory: TrajectoryName | None = None
    trajectory_started_at: float | None = None
    """Submission time of the first known action of the trajectory."""
    gang: Gang | None = None
    """Gang of the action; None if the action was granted before, because a retry starts alone."""
    gang_members: tuple["QueuedAction", ...] = ()
    """Other members of the gang. The action represents all of them in the queue."""
    is_critical: bool = False
    """True if its trajectory is expected to end its step last. It goes before others of its task and priority."""

    @property
    def rank(self) -> int:
        """Return the order inside a task: a higher value goes first."""
        return 2 * self.priority + self.is_critical


class RunningAction(NamedTuple):
    """A granted or running action and its allocation."""

    fence: Fence
    cls: ActionClass | None
    node: int
    resources: Resources
    granted: float
    task: int
    allocated_since: float
    """Time of the last change of its amounts, initially the grant."""
    started: float | None = None
    remaining_work: float = 1.0
    """Estimated fraction of the work that was left at `allocated_since`."""
    overrun: float = 0.0
    """Overrun level: 0 if normal, 1 for a straggler, 2 if forecasts no longer expect its end."""
    resizing_to: Resources | None = None
    """Amounts after the resize in progress; until it is confirmed, the allocation is the larger of both."""
    in_environment: bool = False
    """True if its memory and disk belong to an environment; they are not released when the action ends."""


class Reservation(NamedTuple):
    """A reservation of a node for an overdue action that fits on no node."""

    node: int
    since: float
    """Start of the reservation. Actions granted there later use unreserved resources or end before it is needed."""


@dataclass(frozen=True, slots=True)
class TrajectoryPod:
    """A trajectory's share of a node, allocated from its first action until its environment ends."""

    node: int
    is_busy: bool
    """True if an action of the trajectory uses the pod's cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResources:
    """The resources of one node of a manager."""

    node: int
    kind: str
    shape: ResourceShape
    capacity: Resources
    available: Resources
    is_schedulable: bool = True
    """False while cordoned, draining or without a lease: no new actions are placed here."""
    is_serving: bool = True
    """True if environments on the node may continue; False without a lease or after the drain deadline."""
    environments: int = 0
    enforced: frozenset[str] = frozenset()
    available_devices: tuple[int, ...] = ()
    """Indices of the free devices; group shape only."""
    resident_services: tuple[ResidentService, ...] = ()
    """Services on the devices; no two of them share a device. Group shape only."""
    time_left_s: float = inf
    """Seconds for which actions may still run before the machine ends the node; infinity if it has no known end."""
    warm_slots: frozenset[str] = frozenset()
    """Slot resources of services that are on a device already, as named by `slot_resource`."""


class Grant(NamedTuple):
    """A grant: the action's fence, its node and its amounts."""

    fence: Fence
    node: int
    resources: Resources
    environment: UUID | None = None
    devices: tuple[int, ...] = ()
    gang: UUID | None = None
    """Gang that is granted completely or not at all; its grants are adjacent in a plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeDecision:
    """New amounts of a running action."""

    fence: Fence
    resources: Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingPlan:
    """The decisions of a round. Grants are in the order in which the policy made them."""

    grants: tuple[Grant, ...] = ()
    resizes: tuple[ResizeDecision, ...] = field(default=())
    watched_nodes: frozenset[int] = frozenset()
    """Nodes with a reservation or a requested shrink for a queued action.

    The next round examines them again, because that action may have left the queue by then.
    """
    reserved: Mapping[UUID, Reservation] = field(default_factory=dict)
    """Reservations by action; the next round respects them."""
