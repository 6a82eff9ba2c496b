"""Bodies of the hops between services. Not public: they may change with any version."""

import json
from collections.abc import Iterable
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from arl_wire.actions import SubmitAction
from arl_wire.errors import Problem
from arl_wire.explain import WaitExplanation
from arl_wire.plans import PlanQuestion
from arl_wire.queues import Quota
from arl_wire.scores import ServiceName
from arl_wire.services import RegisterService, ServiceVerb

__all__ = [
    "AdmitAnswer",
    "AdmitItem",
    "AdmitRequest",
    "AdmitResponse",
    "AdmittedHint",
    "AskedFor",
    "BeginsWith",
    "CancelWish",
    "ChangeProjectWish",
    "ChangeQueueWish",
    "ChangeServiceWish",
    "DeleteSnapshotWish",
    "EndTrajectoryWish",
    "ExplainAnswer",
    "ExplainAsk",
    "FenceBody",
    "FreedHint",
    "GangBody",
    "GrantBatch",
    "GrantBody",
    "InputAnswer",
    "InputBody",
    "OutputAnswer",
    "OutputAsk",
    "PlanAsk",
    "Portion",
    "QueuedAction",
    "RegisterServiceWish",
    "RemoveServiceAnswer",
    "RemoveServiceWish",
    "ResizeAnswer",
    "ResizeBatch",
    "ResizeBody",
    "ResizeResponse",
    "RunBody",
    "StragglerBody",
    "StragglersAnswer",
    "StragglersAsk",
    "Submission",
    "WishAnswer",
]


class Submission(BaseModel):
    """All of an `AdmitItem` but for its action.

    `key` makes it idempotent within its project; `body_hash` is what the key was used for.
    """

    project_id: int
    key: str | None = None
    body_hash: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    begins_with: "BeginsWith | None" = None
    asked_for: list["AskedFor"] = Field(default_factory=list)

    def written_with(self, action: str) -> str:
        """The `AdmitItem`, of an action that is JSON already: it may be megabytes, and is written once."""
        return f'{{"action":{action},{self.model_dump_json(exclude_defaults=True)[1:]}'


class AdmitItem(Submission):
    """One submission."""

    action: SubmitAction


class AskedFor(BaseModel):
    """Whose the next `items` of a score action are, where it was put together from several calls."""

    items: int
    trajectory: str | None = None
    step: int | None = None
    traceparent: str | None = None


class BeginsWith(BaseModel):
    """The snapshot of an environment that is to be made, and the node that has it."""

    snapshot: UUID
    node: int


class AdmitRequest(BaseModel):
    """A `gang` is admitted as a whole or refused as a whole, and so it starts."""

    items: list[AdmitItem]
    gang: bool = False

    @staticmethod
    def written(items: Iterable[str], *, gang: bool = False) -> str:
        """As JSON, of items that are JSON already."""
        return f'{{"items":[{",".join(items)}],"gang":{json.dumps(gang)}}}'


class AdmitAnswer(BaseModel):
    """One of `id` and `problem`."""

    id: UUID | None = None
    created: bool = False
    """False where its key stood for an action that was there already."""
    problem: Problem | None = None


class AdmitResponse(BaseModel):
    """In the order of the request; sent after the commit."""

    items: list[AdmitAnswer]


class QueuedAction(BaseModel):
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
    gang: "GangBody | None" = None


class GangBody(BaseModel):
    """Of how many actions that start together this is one."""

    id: UUID
    size: int


class AdmittedHint(BaseModel):
    actions: list[QueuedAction]


class FenceBody(BaseModel):
    id: UUID
    grant_no: int


class RunBody(FenceBody):
    """What an attempt took that ran to its own end, well or badly: for estimates."""

    run_us: int
    cpu_us: int


class FreedHint(BaseModel):
    """What these fences held is free, and what those of `runs` held. `requeued` ones, of these fences, went back to the
    queue. Without any fence, environments ended."""

    fences: list[FenceBody]
    requeued: list[FenceBody] = []
    runs: list[RunBody] = []


class GrantBody(BaseModel):
    id: UUID
    grant_no: int
    amounts: dict[str, int]
    environment_id: UUID | None = None
    amounts_seq: int = 0


class GrantBatch(BaseModel):
    """A faster copy of the rows: one a round and manager."""

    node_epoch: UUID
    grants: list[GrantBody]


class ResizeBody(BaseModel):
    """New cores for a running action. Only one with a higher `amounts_seq` than the last changes anything.

    Any other asks what it has.
    """

    id: UUID
    grant_no: int
    cpu_milli: int = Field(ge=1)
    amounts_seq: int = Field(ge=0)


class ResizeBatch(BaseModel):
    node_epoch: UUID
    resizes: list[ResizeBody]


class ResizeAnswer(BaseModel):
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


class ResizeResponse(BaseModel):
    """In the order of the request, sent once all of it holds."""

    answers: list[ResizeAnswer]


class OutputAsk(BaseModel):
    """What has this attempt written beyond these offsets? Answered as soon as there is something to say."""

    id: UUID
    grant_no: int
    stdout: int
    stderr: int


class _WithBytes(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")


class Portion(_WithBytes):
    """Some of what a stream has beyond the offset that was asked for."""

    data: bytes = b""
    kept_bytes: int = 0
    total_bytes: int = 0


class OutputAnswer(BaseModel):
    """`ended`: the attempt is over, and its row soon says all. `absent`: it does not run here, or not yet."""

    status: Literal["running", "ended", "absent"]
    stdout: Portion = Portion()
    stderr: Portion = Portion()


class InputBody(_WithBytes):
    id: UUID
    grant_no: int
    data: bytes
    offset: int | None
    end: bool


class InputAnswer(BaseModel):
    """`gap`: bytes before that offset are missing. `unopened`: it was not submitted with `stdin_open`."""

    status: Literal["taken", "absent", "unopened", "closed", "full", "gap"]
    offset: int = 0
    """Bytes taken so far."""


class CancelWish(BaseModel):
    project_id: int
    ids: list[UUID]


class EndTrajectoryWish(BaseModel):
    project_id: int
    task: str
    trajectory: str


class DeleteSnapshotWish(BaseModel):
    project_id: int
    id: UUID


class ChangeQueueWish(BaseModel):
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
    quota: Quota | None = None


class ChangeProjectWish(BaseModel):
    name: str
    weight: float


class RegisterServiceWish(BaseModel):
    service: RegisterService


class ChangeServiceWish(BaseModel):
    name: ServiceName
    verb: ServiceVerb


class RemoveServiceWish(BaseModel):
    name: ServiceName


class RemoveServiceAnswer(BaseModel):
    """Whether it is gone; how many actions that name it have not settled keeps it."""

    removed: bool
    unsettled: int


class WishAnswer(BaseModel):
    """How many rows the wish reached."""

    count: int


class ExplainAsk(BaseModel):
    """Why does this queued action not run?"""

    id: UUID


class ExplainAnswer(BaseModel):
    """`wait` without the name of the node, which the gateway knows."""

    node: int | None = None
    wait: WaitExplanation


class PlanAsk(BaseModel):
    """What would be? `without` are the nodes that the question names."""

    question: PlanQuestion
    without: list[int]


class StragglersAsk(BaseModel):
    """Who runs far longer than others of his class? The furthest beyond first; or whether the `only` one does."""

    limit: int
    only: UUID | None = None


class StragglerBody(BaseModel):
    id: UUID
    amounts: dict[str, int]
    elapsed_s: float
    limit_s: float


class StragglersAnswer(BaseModel):
    stragglers: list[StragglerBody]
