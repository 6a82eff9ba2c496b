"""Bodies that the gateway sends to admission. They may change with any version."""

import json
from collections.abc import Iterable
from uuid import UUID

from pydantic import BaseModel, Field

from arl_wire.actions.action import SubmitActionRequest
from arl_wire.admin.queues import QueueQuota
from arl_wire.errors import ProblemDetails

__all__ = [
    "AdmitItem",
    "AdmitItemResult",
    "AdmitRequest",
    "AdmitResponse",
    "AffectedRowsResponse",
    "CancelActionsRequest",
    "CoalescedCall",
    "DeleteSnapshotRequest",
    "EndTrajectoryRequest",
    "InternalChangeNodeRequest",
    "InternalChangeProjectRequest",
    "InternalChangeQueueRequest",
    "RemoveNodeRequest",
    "RemoveNodeResponse",
    "SnapshotSource",
    "SubmissionMetadata",
]


class SubmissionMetadata(BaseModel):
    """All of an `AdmitItem` but for its action.

    `key` makes it idempotent within its project; `body_hash` is what the key was used for.
    """

    project_id: int
    key: str | None = None
    body_hash: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    begins_with: "SnapshotSource | None" = None
    asked_for: list["CoalescedCall"] = Field(default_factory=list)

    def to_item_json(self, action_json: str) -> str:
        """The `AdmitItem`, of an action that is JSON already: it may be megabytes, and is written once."""
        return f'{{"action":{action_json},{self.model_dump_json(exclude_defaults=True)[1:]}'


class AdmitItem(SubmissionMetadata):
    """One submission."""

    action: SubmitActionRequest


class CoalescedCall(BaseModel):
    """Whose the next `items` of a score action are, where it was put together from several calls."""

    items: int
    trajectory: str | None = None
    step: int | None = None
    traceparent: str | None = None


class SnapshotSource(BaseModel):
    """The snapshot of an environment that is to be made, and the node that has it."""

    snapshot: UUID
    node: int


class AdmitRequest(BaseModel):
    """A `gang` is admitted as a whole or refused as a whole, and so it starts."""

    items: list[AdmitItem]
    gang: bool = False

    @staticmethod
    def json_from_items(item_jsons: Iterable[str], *, gang: bool = False) -> str:
        """As JSON, of items that are JSON already."""
        return f'{{"items":[{",".join(item_jsons)}],"gang":{json.dumps(gang)}}}'


class AdmitItemResult(BaseModel):
    """One of `id` and `problem`."""

    id: UUID | None = None
    created: bool = False
    """False where its key stood for an action that was there already."""
    problem: ProblemDetails | None = None


class AdmitResponse(BaseModel):
    """In the order of the request; sent after the commit."""

    items: list[AdmitItemResult]


class CancelActionsRequest(BaseModel):
    project_id: int
    ids: list[UUID]


class EndTrajectoryRequest(BaseModel):
    project_id: int
    task: str
    trajectory: str


class DeleteSnapshotRequest(BaseModel):
    project_id: int
    id: UUID


class InternalChangeQueueRequest(BaseModel):
    """Of a task's queue. With `limits`, how many may wait (None: as many as the default), with `sets_quota`, how many
    may run (None: as many as find room); others None: as it is.
    """

    project_id: int
    task: str
    limits: bool
    max_queued: int | None
    paused: bool | None
    weight: float | None
    sets_quota: bool = False
    quota: QueueQuota | None = None


class InternalChangeProjectRequest(BaseModel):
    name: str
    weight: float


class AffectedRowsResponse(BaseModel):
    """How many rows the wish reached."""

    count: int


class InternalChangeNodeRequest(BaseModel):
    """Close a node to what is new, or open it again; with a deadline, empty it until then."""

    name: str
    cordoned: bool
    drain_deadline_s: float | None = None


class RemoveNodeRequest(BaseModel):
    name: str


class RemoveNodeResponse(BaseModel):
    """Whether it is gone, or what keeps it; neither where there is no such node."""

    removed: bool
    kept_by: str | None = None
