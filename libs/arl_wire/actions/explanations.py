"""Explanations of queued and later actions: `GET /v1/actions/{id}/explain`."""

from datetime import datetime
from uuid import UUID

from pydantic import BaseModel, Field

from arl_core.domain.states import ActionOutcome, ActionState, EstimateBasis, WaitReason
from arl_wire.actions.action import ActionTimes

__all__ = [
    "ActionExplanation",
    "AheadCounts",
    "ExpectedRunTime",
    "ResourceShortfall",
    "StragglerInfo",
    "StragglerListResponse",
    "StragglerStatus",
    "WaitExplanation",
]


class ResourceShortfall(BaseModel):
    """A resource of which the node has too little free."""

    resource: str
    needed: int
    free: int
    capacity: int


class AheadCounts(BaseModel):
    """The number of competing actions ahead, if each got its minimum."""

    priority: int = Field(description="Because their priority is higher")
    in_task: int = Field(description="Others of its task")
    other_tasks: int = Field(description="Of other tasks, by fair shares")
    at_least: bool = Field(description="These are as many as are counted, and there are more")


class ExpectedRunTime(BaseModel):
    """The expected run time with this amount of `resource`."""

    amount: int
    seconds: float


class WaitExplanation(BaseModel):
    """The explanation of a queued action, from the scheduler's current state."""

    rule: WaitReason = Field(
        description="What decides: `queue_paused`; `environment_busy`; `starts_next_round`; `no_node_fits`, ever;"
        " `no_node_open`: those that could run it are closed or silent; `task_at_quota`: that lets no more of its task"
        " start; `postponed_for_more_cores`: it fits, and ends sooner if it waits; `waits_behind_overdue`: what is free"
        " is kept for one that nothing may overtake any more;"
        " `waits_for_gang`: it fits, and not all that start with it do; `waits_behind_priority`; `waits_in_order`"
        " of its task; `waits_behind_fair_share`: tasks that had less go first; `waits_for_capacity`: nobody goes first"
    )
    node: str | None = Field(
        default=None,
        description="Where its environment lives, else the node that lacks least; absent where none could ever run it",
    )
    lacks: list[ResourceShortfall] = Field(
        description="What is missing there; or against the capacity of the largest, if none fits"
    )
    unenforced: list[str] = Field(description="What it requires and no node has")
    ahead: AheadCounts | None = Field(
        default=None, description="Absent while its queue is paused or others come first in its environment"
    )
    ahead_in_environment: int | None = Field(
        default=None, description="Actions that its environment runs, or that come before it there"
    )
    counts_from: datetime = Field(description="When it counts as submitted: earlier if its trajectory began earlier")
    lead_s: float = Field(description="How far behind shorter ones of its task it goes, for its length and width")
    debt_s: float = Field(
        description="Seconds of all nodes that its task had more than the one, of those that wait, that had least"
    )
    part: float = Field(description="Of its task by weight, beside the tasks that wait too; 0 to 1")
    resource: str | None = Field(default=None, description="What `amount` below is of, in `cpu_milli` for instance")
    narrowest: ExpectedRunTime
    widest: ExpectedRunTime
    basis: EstimateBasis = Field(
        description="What `seconds` rest on: `learnt` of its class, `pooled` of classes like it, `declared` and assumed"
    )
    runs: int = Field(description="Of its class, that were learnt from")
    backlog_s: float | None = Field(
        default=None, description="Until all that runs and waits were done on `node`, were it spread evenly"
    )


class StragglerStatus(BaseModel):
    """The status of an action that runs for longer than `limit_s`."""

    elapsed_s: float = Field(description="Since it began to run, as of the scheduler's last look")
    limit_s: float = Field(description="As of a straggler in `GET /v1/admin/stragglers`")


class ActionExplanation(BaseModel):
    """The explanation of an action. A queued one has `wait`; any other has its allocation and its times."""

    id: UUID
    state: ActionState
    outcome: ActionOutcome | None = None
    reason: str | None = None
    node: str | None = Field(default=None, description="Where it was granted")
    amounts: dict[str, int] | None = Field(default=None, description="What it holds, or held")
    created_at: datetime
    granted_at: datetime | None = None
    started_at: datetime | None = None
    settled_at: datetime | None = None
    times: ActionTimes
    wait: WaitExplanation | None = None
    straggles: StragglerStatus | None = Field(
        default=None, description="Of one that runs far longer than others like it, while a scheduler leads"
    )


class StragglerInfo(BaseModel):
    """An action that runs for longer than `limit_s`."""

    id: UUID
    task: str
    trajectory: str | None = None
    node: str | None = None
    amounts: dict[str, int]
    elapsed_s: float = Field(description="Since it began to run")
    limit_s: float = Field(
        description="Five times the median of its class with what it has, or what one run in a hundred exceeds if that"
        " is more; 8 runs have to be known"
    )


class StragglerListResponse(BaseModel):
    """The stragglers of the caller's project, those furthest above their limits first."""

    items: list[StragglerInfo]
