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
"""Relative weight: a queue with twice the weight gets twice the share if both have more work than fits."""


_MaxRunning = Annotated[int, Field(ge=1, le=2**31 - 1)]


class QueueQuota(StrictModel):
    """The maximum number of concurrently running actions of a task, regardless of free resources."""

    running: _MaxRunning | None = Field(
        default=None, description="Maximum number of granted and running actions of all kinds"
    )
    reward_services: dict[ServiceName, _MaxRunning] = Field(
        default_factory=dict,
        max_length=256,
        description="Maximum number of these actions per reward service. A service may be registered later",
    )
    endpoints: dict[EndpointName, _MaxRunning] = Field(
        default_factory=dict, max_length=256, description="Maximum number of these actions per endpoint"
    )

    @property
    def has_limits(self) -> bool:
        """Return True if the quota limits anything."""
        return self.running is not None or bool(self.reward_services or self.endpoints)


class ChangeQueueRequest(BaseModel):
    """A change of a queue; omitted fields stay unchanged."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_queued: int | None = Field(
        default=None,
        ge=1,
        le=2**31 - 1,
        description="Maximum number of queued actions. Further submissions get 429 `queue_full`; actions already in"
        " the queue stay. null: the default of the installation",
    )
    paused: bool | None = Field(
        default=None,
        description="True to stop new grants of the queue. Granted actions continue, and deadlines and limits still"
        " apply. False to resume it",
    )
    weight: Weight | None = Field(
        default=None, description="Share of the queue relative to the other queues of its project; the default is 1"
    )
    quota: QueueQuota | None = Field(
        default=None, description="New quota; it replaces the current one. Running actions continue. null: no quota"
    )

    @field_validator("quota")
    @classmethod
    def _check_quota(cls, quota: QueueQuota | None) -> QueueQuota | None:
        if quota is not None and not quota.has_limits:
            raise ValueError(
                "the quota is empty: give `running`, `reward_services` or `endpoints`, or null to remove the quota"
            )
        if quota is not None and (verifiers := sorted(quota.reward_services.keys() & VERIFIERS.keys())):
            raise ValueError(
                f"{', '.join(verifiers)}: verifiers run in sandboxes and cannot be limited as reward services; use"
                " `running`"
            )
        return quota

    @model_validator(mode="after")
    def _check_not_empty(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("the change is empty: give `max_queued`, `paused`, `weight` or `quota`")
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
    max_queued: int | None = Field(
        default=None, description="Maximum number of queued actions. Absent: the default of the installation"
    )
    queued: int = Field(description="Queued actions")
    running: int = Field(description="Granted and running actions")
    paused: bool = Field(default=False, description="True if the queue starts no actions until it is resumed")
    weight: float = Field(default=1.0, description="Share of the queue relative to the other queues of its project")
    quota: QueueQuota | None = Field(
        default=None, description="Quota of the queue. Absent: only free resources limit it"
    )


class QueueListResponse(BaseModel):
    """A page of queues in order of creation. `next_cursor` is absent on the last page."""

    items: list[Queue]
    next_cursor: int | None = None


class ChangeProjectRequest(BaseModel):
    """A change of a project."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weight: Weight = Field(description="Share of the project relative to the other projects; the default is 1")


class Project(BaseModel):
    """A project with its weight among all projects."""

    id: int
    name: str
    weight: float = Field(description="Share of the project relative to the other projects")


class ProjectListResponse(BaseModel):
    """A page of projects in order of creation. `next_cursor` is absent on the last page."""

    items: list[Project]
    next_cursor: int | None = None
