"""Bodies of the hops between services. Not public: they may change with any version."""

import json
from collections.abc import Iterable
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from arl_wire.actions.action import SubmitActionRequest
from arl_wire.actions.explanations import WaitExplanation
from arl_wire.admin.capacity import CapacityPlanQuery
from arl_wire.admin.queues import QueueQuota
from arl_wire.errors import ProblemDetails
from arl_wire.reward_services.service import RegisterServiceRequest, ServiceOperation
from arl_wire.scores import ServiceName

__all__ = [
    "ActionsAdmittedNotification",
    "AdmitItem",
    "AdmitItemResult",
    "AdmitRequest",
    "AdmitResponse",
    "AffectedRowsResponse",
    "CancelActionsRequest",
    "CapacityPlanRequest",
    "CoalescedCall",
    "DeleteSnapshotRequest",
    "EndTrajectoryRequest",
    "ExplainRequest",
    "ExplainResponse",
    "FencePayload",
    "FindStragglersRequest",
    "FindStragglersResponse",
    "GangMembership",
    "GrantBatchRequest",
    "GrantPayload",
    "InternalChangeNodeRequest",
    "InternalChangeProjectRequest",
    "InternalChangeQueueRequest",
    "InternalRegisterServiceRequest",
    "OutputPortion",
    "QueuedActionRow",
    "ReadOutputRequest",
    "ReadOutputResponse",
    "RemoveNodeRequest",
    "RemoveNodeResponse",
    "RemoveServiceRequest",
    "RemoveServiceResponse",
    "ResizeBatchRequest",
    "ResizeBatchResponse",
    "ResizePayload",
    "ResizeResult",
    "ResourcesFreedNotification",
    "RunReport",
    "ServiceOperationRequest",
    "SnapshotSource",
    "StragglerPayload",
    "SubmissionMetadata",
    "WriteInputRequest",
    "WriteInputResponse",
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


class GrantPayload(BaseModel):
    id: UUID
    grant_no: int
    amounts: dict[str, int]
    environment_id: UUID | None = None
    amounts_seq: int = 0


class GrantBatchRequest(BaseModel):
    """A faster copy of the rows: one a round and manager."""

    node_epoch: UUID
    grants: list[GrantPayload]


class ResizePayload(BaseModel):
    """New cores for a running action. Only one with a higher `amounts_seq` than the last changes anything.

    Any other asks what it has.
    """

    id: UUID
    grant_no: int
    cpu_milli: int = Field(ge=1)
    amounts_seq: int = Field(ge=0)


class ResizeBatchRequest(BaseModel):
    node_epoch: UUID
    resizes: list[ResizePayload]


class ResizeResult(BaseModel):
    """What became of one resize.

    `done`: it holds, and what a shrink gave back is free. `stale`: another one came before. `full`: a growth beyond
    what is free; it has what it had. `absent`: this fence does not run here, or is being ended.
    """

    id: UUID
    grant_no: int
    status: Literal["done", "stale", "full", "absent"]
    cpu_milli: int | None = None
    """What the action has now; None where it is absent."""
    amounts_seq: int | None = None
    """The resize that this came from; 0 for the grant itself."""
    free_cpu_milli: int
    """Of the node, for others and for a growth."""


class ResizeBatchResponse(BaseModel):
    """In the order of the request, sent once all of it holds."""

    answers: list[ResizeResult]


class ReadOutputRequest(BaseModel):
    """What has this attempt written beyond these offsets? Answered as soon as there is something to say."""

    id: UUID
    grant_no: int
    stdout: int
    stderr: int


class _Base64Model(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")


class OutputPortion(_Base64Model):
    """Some of what a stream has beyond the offset that was asked for."""

    data: bytes = b""
    kept_bytes: int = 0
    total_bytes: int = 0


class ReadOutputResponse(BaseModel):
    """`ended`: the attempt is over, and its row soon says all. `absent`: it does not run here, or not yet."""

    status: Literal["running", "ended", "absent"]
    stdout: OutputPortion = OutputPortion()
    stderr: OutputPortion = OutputPortion()


class WriteInputRequest(_Base64Model):
    id: UUID
    grant_no: int
    data: bytes
    offset: int | None
    end: bool


class WriteInputResponse(BaseModel):
    """`gap`: bytes before that offset are missing. `unopened`: it was not submitted with `stdin_open`."""

    status: Literal["taken", "absent", "unopened", "closed", "full", "gap"]
    offset: int = 0
    """Bytes taken so far."""


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


class InternalRegisterServiceRequest(BaseModel):
    service: RegisterServiceRequest


class ServiceOperationRequest(BaseModel):
    name: ServiceName
    verb: ServiceOperation


class RemoveServiceRequest(BaseModel):
    name: ServiceName


class RemoveServiceResponse(BaseModel):
    """Whether it is gone; how many actions that name it have not settled keeps it."""

    removed: bool
    unsettled: int


class AffectedRowsResponse(BaseModel):
    """How many rows the wish reached."""

    count: int


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
