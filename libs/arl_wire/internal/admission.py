"""Requests from the gateway to admission. They may change with any version."""

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
    "EndStepRequest",
    "EndTrajectoryRequest",
    "InternalChangeNodeRequest",
    "InternalChangeProjectRequest",
    "InternalChangeQueueRequest",
    "RemoveNodeRequest",
    "RemoveNodeResponse",
    "RequestImagesRequest",
    "SnapshotSource",
    "SubmissionMetadata",
]


class SubmissionMetadata(BaseModel):
    """The fields of an `AdmitItem` except its action.

    `key` makes the submission idempotent within its project; `body_hash` identifies the body that used the key.
    """

    project_id: int
    project: str = ""
    """Name of the project. Endpoints may be limited to some projects."""
    key: str | None = None
    body_hash: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    begins_with: "SnapshotSource | None" = None
    asked_for: list["CoalescedCall"] = Field(default_factory=list)

    def to_item_json(self, action_json: str) -> str:
        """Return the `AdmitItem` for an action that is already JSON, so that megabytes are serialized only once."""
        return f'{{"action":{action_json},{self.model_dump_json(exclude_defaults=True)[1:]}'


class AdmitItem(SubmissionMetadata):
    """A submission."""

    action: SubmitActionRequest


class CoalescedCall(BaseModel):
    """The origin of the next `items` of a score action that combines several calls."""

    items: int
    trajectory: str | None = None
    step: int | None = None
    traceparent: str | None = None


class SnapshotSource(BaseModel):
    """The snapshot from which to create an environment, and the node that has it."""

    snapshot: UUID
    node: int


class AdmitRequest(BaseModel):
    """A request to admit actions. A `gang` is admitted and started completely or not at all."""

    items: list[AdmitItem]
    gang: bool = False

    @staticmethod
    def json_from_items(item_jsons: Iterable[str], *, gang: bool = False) -> str:
        """Return the request as JSON, for items that are already JSON."""
        return f'{{"items":[{",".join(item_jsons)}],"gang":{json.dumps(gang)}}}'


class AdmitItemResult(BaseModel):
    """The result of one item: either `id` or `problem`."""

    id: UUID | None = None
    created: bool = False
    """False if the key belonged to an existing action."""
    problem: ProblemDetails | None = None


class AdmitResponse(BaseModel):
    """The results in the order of the request, sent after the commit."""

    items: list[AdmitItemResult]


class CancelActionsRequest(BaseModel):
    """A request to cancel actions of a project."""

    project_id: int
    ids: list[UUID]


class EndTrajectoryRequest(BaseModel):
    """A request to cancel a trajectory's actions and to end its environment."""

    project_id: int
    task: str
    trajectory: str


class EndStepRequest(BaseModel):
    """A request to end a training step."""

    project_id: int
    task: str
    step: int


class DeleteSnapshotRequest(BaseModel):
    """A request to delete a snapshot of a project."""

    project_id: int
    id: UUID


class InternalChangeQueueRequest(BaseModel):
    """A change of a task's queue.

    If `limits` is true, `max_queued` is set (None: the default). If `sets_quota` is true, `quota` is set (None: no
    quota). In the other fields, None means no change.
    """

    project_id: int
    task: str
    limits: bool
    max_queued: int | None
    paused: bool | None
    weight: float | None
    sets_quota: bool = False
    quota: QueueQuota | None = None
    create: bool = False
    """Create the queue if the task has none."""


class InternalChangeProjectRequest(BaseModel):
    """A change of a project's weight."""

    name: str
    weight: float


class AffectedRowsResponse(BaseModel):
    """The number of affected rows."""

    count: int


class InternalChangeNodeRequest(BaseModel):
    """A request to cordon, reopen or drain a node. A deadline drains it."""

    name: str
    cordoned: bool
    drain_deadline_s: float | None = None


class RequestImagesRequest(BaseModel):
    """A request to pull images to nodes, or to remove them from all nodes if `nodes` is None."""

    images: list[str]
    nodes: list[str] | None = None


class RemoveNodeRequest(BaseModel):
    """A request to remove a dead node."""

    name: str


class RemoveNodeResponse(BaseModel):
    """The result of removing a node: `removed`, or the reason for refusing; neither if the node does not exist."""

    removed: bool
    kept_by: str | None = None
