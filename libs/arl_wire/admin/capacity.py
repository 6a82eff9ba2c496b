"""Hypothetical capacity and load: `GET /v1/admin/capacity`."""

import re
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field, StringConstraints, model_validator

from arl_wire.actions.action import MAX_MIB, Cpu
from arl_wire.validation import StrictModel

__all__ = ["CapacityForecast", "CapacityPlan", "CapacityPlanQuery"]

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
        raise ValueError("is a number of cores, or a part of those that there are, such as 75%")
    return given


CoresText = Annotated[str, StringConstraints(pattern=CORES_PATTERN), BeforeValidator(_check_cores)]


class CapacityPlanQuery(StrictModel):
    """A hypothetical change: other nodes, more actions, or both. Nothing is changed."""

    cores: CoresText | None = Field(
        default=None,
        description="What all nodes that take something new have together: `75%` of what they have, or so many cores."
        " Each node gets its part",
    )
    add_nodes: int = Field(default=0, ge=0, le=MAX_NODES, description="More nodes like the one with most cores")
    exclude_node: list[NodeName] = Field(
        default_factory=list, max_length=MAX_NODE_NAMES, description="Names of nodes that take nothing new"
    )
    actions: int = Field(default=0, ge=0, le=MAX_EXTRA_ACTIONS, description="So many more, alike, that come now")
    cpu: Cpu = Field(default=1, description="Cores that each of them needs")
    cpu_max: Cpu | None = Field(default=None, description="Cores that each of them can use; left out: as many as `cpu`")
    memory_mib: int = Field(default=512, ge=8, le=MAX_MIB)
    disk_mib: int = Field(default=128, ge=1, le=MAX_MIB)
    seconds: float = Field(
        default=1.0, gt=0, le=86400, allow_inf_nan=False, description="How long each takes on `cpu` cores"
    )
    parallel_fraction: float = Field(
        default=1.0, ge=0, le=1, description="Of its work, that more cores make shorter (Amdahl)"
    )

    @model_validator(mode="after")
    def _check_consistency(self) -> "CapacityPlanQuery":
        if self.cpu_max is not None and self.cpu_max < self.cpu:
            raise ValueError("cpu_max is below cpu")
        if self.cores is not None and float(self.cores.rstrip("%")) > self._max_cores:
            raise ValueError(f"cores are at most {MAX_CORES:.0f}, or {MAX_PERCENT:.0f}% of what there is")
        return self

    @property
    def _max_cores(self) -> float:
        return MAX_PERCENT if self.cores is not None and self.cores.endswith("%") else MAX_CORES

    @property
    def has_changes(self) -> bool:
        return self.cores is not None or bool(self.add_nodes or self.exclude_node or self.actions)

    def core_fraction(self, schedulable_milli: int) -> float:
        """Return the requested cores as a fraction of the schedulable cores."""
        if self.cores is None:
            return 1.0
        if self.cores.endswith("%"):
            return float(self.cores[:-1]) / 100
        return 1000 * float(self.cores) / schedulable_milli if schedulable_milli else 1.0


class CapacityForecast(BaseModel):
    """A forecast of the queued actions without new arrivals, from expected durations. Seconds from now."""

    nodes: int = Field(description="Nodes with cores that take something new")
    cpu_milli: int = Field(description="What these have together")
    queued: int = Field(description="Actions")
    simulated: int = Field(
        description="Of these, in order of arrival: 2000 at most, and none whose queue is paused or has a"
        " quota, or whose environment is about to end"
    )
    starts_now: int = Field(description="Of the simulated ones: before anything that runs has ended")
    started: int = Field(description="Of the simulated ones: all that start at all. What no node fits does not")
    mean_wait_s: float | None = Field(default=None, description="Of those that start, from now until then")
    p90_wait_s: float | None = Field(default=None, description="So long or shorter wait nine of ten")
    drain_s: float | None = Field(
        default=None, description="Until the last of the simulated ones starts; absent where not all do"
    )
    complete: bool = Field(description="false: the time for looking ahead was over, and later starts are not in it")


class CapacityPlan(BaseModel):
    """A capacity plan, computed with the scheduler's own policy on a copy of its state.

    Existing environments stay. An environment created during the forecast ends with its last known action.
    """

    current: CapacityForecast = Field(description="With the nodes there are and what waits there")
    hypothetical: CapacityForecast | None = Field(
        default=None, description="With what was asked; absent where nothing was"
    )
