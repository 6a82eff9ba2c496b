"""Training steps of a task: `GET /v1/tasks/{task}/steps/{step}`."""

from datetime import datetime

from pydantic import BaseModel, Field

from arl_core.steps.projection import BoostRule

__all__ = ["ResourceSaving", "StepReport", "StepTrajectoryStatus", "TrajectoryTimes"]


class TrajectoryTimes(BaseModel):
    """The parts of the time that a trajectory took so far, in seconds."""

    think_s: float = Field(description="Time without an action, in which the model generates")
    queue_s: float = Field(description="Time in which its actions were queued")
    run_s: float = Field(description="Time in which its actions ran, without the waiting for shared cores")
    core_wait_s: float = Field(description="Time in which its actions waited for shared cores while they ran")
    overhead_s: float = Field(
        description="Remaining time between a grant and the end of its action: starts, restores of weights, transfers"
    )


class StepTrajectoryStatus(BaseModel):
    """A trajectory of a step, as the scheduler knows it."""

    trajectory: str
    prompt: str | None = None
    group: str | None = None
    started_at: datetime
    ended_at: datetime | None = None
    turns: int = Field(description="Actions that have ended")
    expected_turns: int | None = None
    times: TrajectoryTimes
    projected_end_at: datetime | None = Field(
        default=None,
        description="Expected end if it never waits. Absent after its end, and without hints and earlier steps",
    )
    log_deviation: float | None = Field(
        default=None, description="Standard deviation of the logarithm of its predicted rest"
    )
    rule: BoostRule = Field(
        description="Rule for the order of its actions. `critical_trajectory`: they go first, because it is expected to"
        " end last. `ends_earlier`: others are expected to end after it. `work_bound`: the cores are busy"
        " until all work of the step is done, in any order. `node_limit`: enough other trajectories go first."
        " `no_prediction`: there are neither hints nor earlier steps of its prompt. `disabled`: it is expected to"
        " end last, and step awareness is off. `trajectory_ended`: it has ended"
    )


class ResourceSaving(BaseModel):
    """The time that the slowest trajectory waited for a resource, and what one more unit of it would have saved."""

    resource: str = Field(description="`cpu` (cores), `slots:SERVICE` or `calls:ENDPOINT` (calls per second)")
    units: float = Field(description="Units that exist")
    waited_s: float
    saved_s: float = Field(
        description="Estimate: `waited_s / (units + 1)`, because waiting is about inversely proportional to the units."
        " An upper bound, because another trajectory may then end last"
    )


class StepReport(BaseModel):
    """The progress of a step and what its slowest trajectory waited for. At most a few seconds old."""

    task: str
    step: int
    started_at: datetime | None = None
    ended_at: datetime | None = Field(default=None, description="Absent while a trajectory is open")
    open: int = Field(description="Trajectories that have not ended")
    ended: int
    unpredicted: int = Field(description="Open trajectories without a prediction")
    critical: int = Field(description="Open trajectories whose actions go first")
    projected_end_at: datetime | None = Field(
        default=None, description="Latest projected end of the open trajectories. Absent without a prediction"
    )
    slowest: StepTrajectoryStatus | None = Field(
        default=None, description="Trajectory that ended last, or that is expected to end last"
    )
    savings: list[ResourceSaving] = Field(
        description="Resources that the slowest trajectory waited for, the longest wait first"
    )
    trajectories: list[StepTrajectoryStatus] = Field(
        description="At most 100 trajectories, those first that end last or are expected to"
    )
