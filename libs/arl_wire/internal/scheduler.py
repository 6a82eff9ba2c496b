"""Messages between the scheduler, admission, node managers and the gateway. They may change with any version."""

from typing import Any
from uuid import UUID

from pydantic import BaseModel

from arl_wire.actions.explanations import WaitExplanation
from arl_wire.admin.capacity import CapacityPlanQuery

__all__ = [
    "ActionsAdmittedNotification",
    "BacklogRequest",
    "CapacityPlanRequest",
    "EndedTrajectory",
    "ExplainRequest",
    "ExplainResponse",
    "FencePayload",
    "FindStragglersRequest",
    "FindStragglersResponse",
    "GangMembership",
    "QueuedActionRow",
    "ResourcesFreedNotification",
    "RunReport",
    "StragglerPayload",
    "TrajectoryHintsPayload",
]


class QueuedActionRow(BaseModel):
    """A queued row for the scheduler's index; the same from a notification or from a poll."""

    id: UUID
    queue_id: int
    kind: str
    trajectory: str | None = None
    environment_id: UUID | None = None
    grant_no: int = 0
    submitted: float
    deadline: float | None = None
    class_key: int
    shape: str
    demand: dict[str, int]
    elastic: dict[str, Any] | None = None
    cpu_sharing: dict[str, Any] | None = None
    environment: dict[str, Any]
    priority: int = 0
    timeout_s: float = 0.0
    gang: "GangMembership | None" = None
    step: int | None = None
    hints: "TrajectoryHintsPayload | None" = None


class GangMembership(BaseModel):
    """The gang of an action and its size."""

    id: UUID
    size: int


class TrajectoryHintsPayload(BaseModel):
    """The hints that an action gives about its trajectory."""

    prompt: str | None = None
    group: str | None = None
    expected_turns: int | None = None
    progress: float | None = None


class EndedTrajectory(BaseModel):
    """A trajectory that a client ended."""

    queue_id: int
    trajectory: str


class ActionsAdmittedNotification(BaseModel):
    """A notification of admitted actions; without any, rows changed that only a poll reads."""

    actions: list[QueuedActionRow]
    ended: list[EndedTrajectory] = []


class FencePayload(BaseModel):
    """The fence of an attempt."""

    id: UUID
    grant_no: int


class RunReport(FencePayload):
    """The run time and processor time of an attempt that ran to its own end, for estimates."""

    run_us: int
    """Without the time in which the attempt waited for shared cores."""
    cpu_us: int
    wall_us: int | None = None
    """Real run time, if it differs."""


class ResourcesFreedNotification(BaseModel):
    """A notification that the resources of these fences, and of those in `runs`, are free.

    `requeued` lists the fences whose actions went back to the queue. Without any fence, environments ended.
    """

    fences: list[FencePayload]
    requeued: list[FencePayload] = []
    runs: list[RunReport] = []


class ExplainRequest(BaseModel):
    """A request to explain a queued action."""

    id: UUID


class ExplainResponse(BaseModel):
    """The explanation, with the node's number instead of its name, which the gateway adds."""

    node: int | None = None
    wait: WaitExplanation


class CapacityPlanRequest(BaseModel):
    """A request for a capacity plan. `without` are the excluded nodes."""

    question: CapacityPlanQuery
    without: list[int]


class BacklogRequest(BaseModel):
    """A request for the backlog of each kind of node."""


class FindStragglersRequest(BaseModel):
    """A request for stragglers, those furthest above their limits first; `only` restricts it to one action."""

    limit: int
    only: UUID | None = None


class StragglerPayload(BaseModel):
    """An action that runs for longer than `limit_s`."""

    id: UUID
    allocation: dict[str, int]
    elapsed_s: float
    limit_s: float


class FindStragglersResponse(BaseModel):
    """The stragglers, those furthest above their limits first."""

    stragglers: list[StragglerPayload]
