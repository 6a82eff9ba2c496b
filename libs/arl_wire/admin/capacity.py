"""Backlog, and hypothetical capacity and load: `GET /v1/admin/backlog` and `GET /v1/admin/capacity`."""

import re
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field, StringConstraints, model_validator

from arl_core.domain.states import UnstartedReason
from arl_wire.actions.action import MAX_MIB, Cpu
from arl_wire.validation import StrictModel

__all__ = [
    "BacklogResponse",
    "CapacityForecast",
    "CapacityPlan",
    "CapacityPlanQuery",
    "NodeKindBacklog",
    "UnstartedActions",
]

MAX_CORES = 10_000_000.0
MAX_PERCENT = 10_000.0
MAX_NODES = 1000
MAX_NODE_NAMES = 100
"""Maximum number of node names; they are part of a URL."""
MAX_EXTRA_ACTIONS = 1000

NodeName = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f]+$")]
CORES_PATTERN = r"^[0-9]{1,8}(\.[0-9]{1,3})?%?$"


def _check_cores(given: object) -> object:
    if isinstance(given, str) and not re.fullmatch(CORES_PATTERN, given):
        raise ValueError("must be a number of cores, or a percentage of the current cores such as 75%")
    return given


CoresText = Annotated[str, StringConstraints(pattern=CORES_PATTERN), BeforeValidator(_check_cores)]


class CapacityPlanQuery(StrictModel):
    """A hypothetical change: other nodes, more actions, or both. Nothing is changed."""

    cores: CoresText | None = Field(
        default=None,
        description="Total cores of all schedulable nodes: a number, or a percentage of the current cores such as"
        " `75%`. Each node gets a proportional part",
    )
    add_nodes: int = Field(
        default=0, ge=0, le=MAX_NODES, description="Number of additional nodes like the node with the most cores"
    )
    exclude_node: list[NodeName] = Field(
        default_factory=list, max_length=MAX_NODE_NAMES, description="Names of nodes to treat as cordoned"
    )
    actions: int = Field(
        default=0, ge=0, le=MAX_EXTRA_ACTIONS, description="Number of additional identical actions that arrive now"
    )
    cpu: Cpu = Field(default=1, description="Cores that each additional action needs")
    cpu_max: Cpu | None = Field(
        default=None, description="Maximum cores that each additional action can use. Absent: `cpu`"
    )
    memory_mib: int = Field(default=512, ge=8, le=MAX_MIB)
    disk_mib: int = Field(default=128, ge=1, le=MAX_MIB)
    seconds: float = Field(
        default=1.0,
        gt=0,
        le=86400,
        allow_inf_nan=False,
        description="Run time of each additional action on `cpu` cores, in seconds",
    )
    parallel_fraction: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="Fraction of the work of each additional action that more cores speed up (Amdahl's law); 0 to 1",
    )

    @model_validator(mode="after")
    def _check_consistency(self) -> "CapacityPlanQuery":
        if self.cpu_max is not None and self.cpu_max < self.cpu:
            raise ValueError("cpu_max must not be below cpu")
        if self.cores is not None and float(self.cores.rstrip("%")) > self._max_cores:
            raise ValueError(f"cores must be at most {MAX_CORES:.0f}, or {MAX_PERCENT:.0f}% of the current cores")
        return self

    @property
    def _max_cores(self) -> float:
        return MAX_PERCENT if self.cores is not None and self.cores.endswith("%") else MAX_CORES

    @property
    def has_changes(self) -> bool:
        """Return True if the query asks for other nodes or more actions."""
        return self.cores is not None or bool(self.add_nodes or self.exclude_node or self.actions)

    def core_fraction(self, schedulable_milli: int) -> float:
        """Return the requested cores as a fraction of the schedulable cores."""
        if self.cores is None:
            return 1.0
        if self.cores.endswith("%"):
            return float(self.cores[:-1]) / 100
        return 1000 * float(self.cores) / schedulable_milli if schedulable_milli else 1.0


class UnstartedActions(BaseModel):
    """A number of queued actions that do not start within the forecast, and the reason."""

    reason: str = Field(description=f"Reason: {', '.join(f'`{each}`' for each in UnstartedReason)}")
    actions: int


class CapacityForecast(BaseModel):
    """A forecast of the queued actions without new arrivals, from expected durations. Seconds from now."""

    nodes: int = Field(description="Schedulable nodes with cores")
    cpu_milli: int = Field(description="Milli-cores of these nodes in total")
    queued: int = Field(description="Actions")
    simulated: int = Field(
        description="Queued actions that the forecast simulates, in order of arrival. It includes at most 2000, and"
        " none with a paused task or an environment that is about to end"
    )
    starts_now: int = Field(description="Simulated actions that start before any running action ends")
    started: int = Field(
        description="Simulated actions that start within the forecast. An action that fits on no node does not start"
    )
    mean_wait_s: float | None = Field(
        default=None, description="Mean seconds from now until the start, over the simulated actions that start"
    )
    p90_wait_s: float | None = Field(
        default=None, description="90th percentile of the seconds from now until the start"
    )
    drain_s: float | None = Field(
        default=None, description="Seconds from now until the last queued action starts. Absent if some do not start"
    )
    complete: bool = Field(
        description="True if every queued action starts within the forecast. Otherwise `unstarted` says which do not"
    )
    unstarted: list[UnstartedActions] = Field(
        default_factory=list, description="Queued actions that do not start within the forecast, by reason"
    )


class CapacityPlan(BaseModel):
    """A capacity plan, computed with the scheduler's own policy on a copy of its state.

    Existing environments stay. An environment created during the forecast ends with its last known action.
    """

    current: CapacityForecast = Field(description="Forecast for the current nodes and the current load")
    hypothetical: CapacityForecast | None = Field(
        default=None, description="Forecast for the requested change. Absent if the query has no change"
    )


class NodeKindBacklog(BaseModel):
    """The backlog of one kind of node. Cores are the minimum cores of the actions."""

    kind: str = Field(description="Kind of node: `cpu`, `gpu` or `api`")
    waiting: int = Field(
        description="Queued actions that any node of the kind may start. Actions of paused tasks, actions without room"
        " in the quota of their task, and actions behind another of their environment are not counted"
    )
    waiting_cores: float = Field(description="Cores of these actions")
    waiting_core_s: float = Field(
        description="Core-seconds of these actions, from estimates of their run time. Actions without an estimate are"
        " in `unknown_cores` instead"
    )
    unknown_cores: float = Field(description="Cores of these actions that have no estimate of their run time")
    pinned: int = Field(description="Queued actions that can only start on the node of their environment")
    oldest_s: float | None = Field(
        default=None, description="Seconds since the submission of the oldest action in `waiting`"
    )
    running: int = Field(description="Granted and running actions")
    busy_cores: float = Field(description="Cores of the granted and running actions")


class BacklogResponse(BaseModel):
    """The backlog of all projects by kind of node, from the scheduler that leads."""

    items: list[NodeKindBacklog]
