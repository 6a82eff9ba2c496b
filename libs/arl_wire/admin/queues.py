"""Queues and projects for administrators. Each task of a project has a queue, created by its first action."""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from arl_wire.calls import EndpointName
from arl_wire.reward_services.kinds import VERIFIERS
from arl_wire.scores import ServiceName
from arl_wire.validation import StrictModel

__all__ = [
    "ChangeProjectRequest",
    "ChangeQueueRequest",
    "Project",
    "ProjectListResponse",
    "Queue",
    "QueueListResponse",
    "QueueQuota",
    "Weight",
]

Weight = Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)]
"""Relative weight: twice the weight gets twice the share if both want more than there is."""


_MaxRunning = Annotated[int, Field(ge=1, le=2**31 - 1)]


class QueueQuota(StrictModel):
    """The maximum number of concurrently running actions of a task, regardless of free resources."""

    running: _MaxRunning | None = Field(default=None, description="Actions that are granted or running, of all kinds")
    reward_services: dict[ServiceName, _MaxRunning] = Field(
        default_factory=dict,
        max_length=256,
        description="Of these, those that a reward service scores, by its name; it may be registered later",
    )
    endpoints: dict[EndpointName, _MaxRunning] = Field(
        default_factory=dict, max_length=256, description="Of these, the calls of an endpoint, by its name"
    )

    @property
    def has_limits(self) -> bool:
        return self.running is not None or bool(self.reward_services or self.endpoints)


class ChangeQueueRequest(BaseModel):
    """A change of a queue; omitted fields stay unchanged."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_queued: int | None = Field(
        default=None,
        ge=1,
        le=2**31 - 1,
        description="Actions that may wait in it; beyond that a submission is answered 429 `queue_full`. What waits"
        " already stays. null: as many as this installation allows by default",
    )
    paused: bool | None = Field(
        default=None,
        description="true: nothing of it starts until it is resumed; what was granted already goes on, deadlines and"
        " limits hold. false: it goes on at once",
    )
    weight: Weight | None = Field(
        default=None, description="Its share beside the other queues of its project; 1 at first"
    )
    quota: QueueQuota | None = Field(
        default=None, description="Instead of the one that it has; what runs already goes on. null: none any more"
    )

    @field_validator("quota")
    @classmethod
    def _check_quota(cls, quota: QueueQuota | None) -> QueueQuota | None:
        if quota is not None and not quota.has_limits:
            raise ValueError(
                "name what it limits: `running`, `reward_services` or `endpoints`; null takes a quota away"
            )
        if quota is not None and (verifiers := sorted(quota.reward_services.keys() & VERIFIERS.keys())):
            raise ValueError(f"{', '.join(verifiers)}: computed in sandboxes, which `running` limits")
        return quota

    @model_validator(mode="after")
    def _check_not_empty(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("name what to change: `max_queued`, `paused`, `weight` or `quota`")
        return self

    @property
    def sets_max_queued(self) -> bool:
        """Return True if the request changes the limit; null is a change too."""
        return "max_queued" in self.model_fields_set

    @property
    def sets_quota(self) -> bool:
        """Return True if the request changes the quota; null is a change too."""
        return "quota" in self.model_fields_set


class Queue(BaseModel):
    """A task's queue and its current counts."""

    id: int
    task: str
    max_queued: int | None = Field(default=None, description="Absent: the default of this installation")
    queued: int = Field(description="Actions that are queued")
    running: int = Field(description="Actions that are granted or running")
    paused: bool = Field(default=False, description="Nothing of it starts until it is resumed")
    weight: float = Field(default=1.0, description="Its share beside the other queues of its project")
    quota: QueueQuota | None = Field(default=None, description="Absent: it runs as many as find room")


class QueueListResponse(BaseModel):
    """A page of queues in order of creation. `next_cursor` is absent on the last page."""

    items: list[Queue]
    next_cursor: int | None = None


class ChangeProjectRequest(BaseModel):
    """A change of a project."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weight: Weight = Field(description="Its share beside the other projects; 1 at first")


class Project(BaseModel):
    id: int
    name: str
    weight: float = Field(description="Its share beside the other projects")


class ProjectListResponse(BaseModel):
    """A page of projects in order of creation. `next_cursor` is absent on the last page."""

    items: list[Project]
    next_cursor: int | None = None
