"""Bodies between the scheduler and admission, node managers and the gateway. They may change with any version."""

from typing import Any
from uuid import UUID

from pydantic import BaseModel

from arl_wire.actions.explanations import WaitExplanation
from arl_wire.admin.capacity import CapacityPlanQuery

__all__ = [
    "ActionsAdmittedNotification",
    "CapacityPlanRequest",
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
]


class QueuedActionRow(BaseModel):
    """A queued row as the scheduler's index needs it: from a hint or from its own poll, the same."""

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
    environment: dict[str, Any]
    priority: int = 0
    gang: "GangMembership | None" = None


class GangMembership(BaseModel):
    """Of how many actions that start together this is one."""

    id: UUID
    size: int


class ActionsAdmittedNotification(BaseModel):
    actions: list[QueuedActionRow]


class FencePayload(BaseModel):
    id: UUID
    grant_no: int


class RunReport(FencePayload):
    """What an attempt took that ran to its own end, well or badly: for estimates."""

    run_us: int
    cpu_us: int


class ResourcesFreedNotification(BaseModel):
    """What these fences held is free, and what those of `runs` held. `requeued` ones, of these fences, went back to the
    queue. Without any fence, environments ended."""

    fences: list[FencePayload]
    requeued: list[FencePayload] = []
    runs: list[RunReport] = []


class ExplainRequest(BaseModel):
    """Why does this queued action not run?"""

    id: UUID


class ExplainResponse(BaseModel):
    """`wait` without the name of the node, which the gateway knows."""

    node: int | None = None
    wait: WaitExplanation


class CapacityPlanRequest(BaseModel):
    """What would be? `without` are the nodes that the question names."""

    question: CapacityPlanQuery
    without: list[int]


class FindStragglersRequest(BaseModel):
    """Who runs far longer than others of his class? The furthest beyond first; or whether the `only` one does."""

    limit: int
    only: UUID | None = None


class StragglerPayload(BaseModel):
    id: UUID
    amounts: dict[str, int]
    elapsed_s: float
    limit_s: float


class FindStragglersResponse(BaseModel):
    stragglers: list[StragglerPayload]
