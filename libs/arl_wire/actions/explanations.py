"""Explanations of queued and later actions: `GET /v1/actions/{id}/explain`."""

from datetime import datetime
from uuid import UUID

from pydantic import BaseModel, Field

from arl_core.domain.states import ActionOutcome, ActionState, EstimateBasis, WaitReason
from arl_core.steps.projection import BoostRule
from arl_wire.actions.action import ActionTimes
from arl_wire.environments.images import ImagePullProgress

__all__ = [
    "ActionExplanation",
    "AheadCounts",
    "ExpectedRunTime",
    "ResourceShortfall",
    "StepPosition",
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

    priority: int = Field(description="Actions ahead because their priority is higher")
    in_task: int = Field(description="Actions of the same task that are ahead")
    other_tasks: int = Field(description="Actions of other tasks that are ahead by fair share")
    truncated: bool = Field(description="True if counting stopped at its limit, so that more actions may be ahead")


class ExpectedRunTime(BaseModel):
    """The expected run time with this amount of `resource`."""

    amount: int
    seconds: float


class StepPosition(BaseModel):
    """The trajectory of an action in its training step, at the last projection of the step."""

    step: int
    rule: BoostRule = Field(
        description="Rule for the order of the actions of its trajectory, as in `GET /v1/tasks/{task}/steps/{step}`."
        " `critical_trajectory`: they go first. `work_bound`: no trajectory of the step does, because the cores are"
        " busy until all of its work is done, in any order"
    )
    turns: int = Field(description="Actions of the trajectory that have ended")
    expected_turns: int | None = None
    projected_rest_s: float | None = Field(
        default=None, description="Expected seconds until the trajectory ends, if it never waits. Absent if unknown"
    )
    log_deviation: float | None = Field(
        default=None, description="Standard deviation of the logarithm of `projected_rest_s`"
    )


class WaitExplanation(BaseModel):
    """The explanation of a queued action, from the scheduler's current state."""

    reason: WaitReason = Field(
        description="Why the action is queued. `queue_paused`: its queue is paused. `pulling_image`: no node has its"
        " image yet, and `image` has the progress of the pull. `environment_busy`: another action"
        " runs in its environment. `starts_next_round`: it starts in the next scheduling round. `no_node_fits`: no node"
        " can ever run it. `no_schedulable_node`: every node that could run it is cordoned or lost."
        " `nodes_end_too_soon`: every node that could run it has a known end that comes before its time limit."
        " `task_at_quota`: its task has reached its quota. `postponed_for_more_cores`: it would end sooner if it waits"
        " for more cores. `waits_behind_reservation`: the free resources are reserved for an action that has waited too"
        " long."
        " `waits_for_gang`: not all actions of its gang fit. `waits_behind_priority`: actions of a higher priority are"
        " ahead. `waits_in_order`: actions of its task are ahead. `waits_behind_fair_share`: tasks that used less are"
        " ahead. `waits_for_capacity`: it is first, and too little is free"
    )
    node: str | None = Field(
        default=None,
        description="The node of its environment, otherwise the node with the smallest shortfall. Absent if no node"
        " could ever run it",
    )
    shortfalls: list[ResourceShortfall] = Field(
        description="Resources that are missing on `node`; if no node fits, compared with the capacity of the largest"
    )
    time_limit_s: float | None = Field(
        default=None,
        description="Seconds for which it may run: `timeout_s`, rounded up by at most an eighth. Absent if `node` has"
        " no known end",
    )
    time_left_s: float | None = Field(
        default=None,
        description="Seconds for which actions may still run on `node`, because the machine ends it. Absent if it has"
        " no known end",
    )
    unenforced: list[str] = Field(description="Required limits that no node enforces")
    ahead: AheadCounts | None = Field(
        default=None, description="Absent if its queue is paused or if other actions of its environment are ahead"
    )
    ahead_in_environment: int | None = Field(
        default=None, description="Actions of its environment that are running or ahead"
    )
    effective_arrival_at: datetime = Field(
        description="Time from which its wait counts: the submission, or earlier if its trajectory began earlier"
    )
    size_penalty_s: float = Field(
        description="Seconds that it is placed behind shorter actions of its task, because of its run time and its"
        " degree of parallelism"
    )
    excess_usage_s: float = Field(
        description="Seconds of the whole cluster that its task used beyond the waiting task that used least"
    )
    fair_share: float = Field(description="Share of its task by weight among the tasks that wait; 0 to 1")
    resource: str | None = Field(default=None, description="Resource of `amount` below, such as `cpu_milli`")
    at_min: ExpectedRunTime = Field(description="Expected run time at the minimum degree of parallelism")
    at_max: ExpectedRunTime = Field(description="Expected run time at the maximum degree of parallelism")
    basis: EstimateBasis = Field(
        description="Source of the expected run times. `learnt`: runs of its class. `pooled`: runs of similar classes."
        " `declared`: what the action declared, and a default"
    )
    observed_runs: int = Field(description="Runs of its class that the estimate uses")
    image: ImagePullProgress | None = Field(
        default=None, description="Pull of its image. Absent if a node has the image, or if it needs none"
    )
    backlog_s: float | None = Field(
        default=None,
        description="Seconds until all running and queued work on `node` would be done, if it were spread evenly",
    )
    trajectory: StepPosition | None = Field(default=None, description="Present if it names a trajectory and a step")


class StragglerStatus(BaseModel):
    """The status of an action that runs for longer than `limit_s`."""

    elapsed_s: float = Field(description="Seconds since it started, at the scheduler's last check")
    limit_s: float = Field(description="Run time from which the action is a straggler")


class ActionExplanation(BaseModel):
    """The explanation of an action. A queued one has `wait`; any other has its allocation and its times."""

    id: UUID
    state: ActionState
    outcome: ActionOutcome | None = None
    reason: str | None = None
    node: str | None = Field(default=None, description="The node on which it was granted")
    allocation: dict[str, int] | None = Field(default=None, description="Resources of its last grant")
    created_at: datetime
    granted_at: datetime | None = None
    started_at: datetime | None = None
    settled_at: datetime | None = None
    times: ActionTimes
    critical: bool = Field(default=False, description="True if it went first, because its trajectory was critical")
    wait: WaitExplanation | None = None
    straggler: StragglerStatus | None = Field(
        default=None, description="Present if it runs far longer than its class and a scheduler leads"
    )


class StragglerInfo(BaseModel):
    """An action that runs for longer than `limit_s`."""

    id: UUID
    task: str
    trajectory: str | None = None
    node: str | None = None
    allocation: dict[str, int]
    elapsed_s: float = Field(description="Seconds since it started")
    limit_s: float = Field(
        description="Run time from which it is a straggler: five times the median of its class with this allocation, or"
        " the 99th percentile if that is more. The class needs 8 recorded runs"
    )


class StragglerListResponse(BaseModel):
    """The stragglers of the caller's project, those furthest above their limits first."""

    items: list[StragglerInfo]
