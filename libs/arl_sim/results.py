"""Results of a simulation: the times of each action, and statistics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np

from arl_sim.cluster import SimCluster
from arl_sim.workload import ActionWork, ResourceKind

__all__ = ["ActionRecord", "SimResult", "SimStatistics", "UsageSegment", "compute_statistics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRecord:
    """A finished action. Times are in seconds since the start of the simulation."""

    id: UUID
    trajectory: int
    task: str
    work: ActionWork
    node: int
    submitted: float
    started: float
    ended: float
    restore_s: float
    """Seconds of waiting for the restore of its service."""

    @property
    def act_s(self) -> float:
        return self.ended - self.submitted


@dataclass(frozen=True, slots=True)
class UsageSegment:
    """The units that a rollout used on a node during an interval."""

    trajectory: int
    node: int
    resource_kind: ResourceKind
    units: float
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class SimResult:
    cluster: SimCluster
    records: tuple[ActionRecord, ...]
    task_ends: Mapping[str, float]
    segments: tuple[UsageSegment, ...]
    rounds: int
    missed: int = 0
    """Actions that were still queued at their deadline; `records` does not have them."""

    @property
    def end_s(self) -> float:
        return max(self.task_ends.values(), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimStatistics:
    """The statistics of a run, in seconds except utilisations and counts.

    ACTs are means over all actions, over elastic CPU actions, and over scores.
    """

    actions: float
    missed: float
    """Number of further actions that were still queued at their deadline."""
    act: float
    p50: float
    p99: float
    queue: float
    suite: float
    """Mean ACT of elastic CPU actions."""
    command: float
    """Mean ACT of CPU actions of one core."""
    score: float
    call: float
    step: float
    """End of the last coding trajectory; if there is none, the end of all tasks."""
    floor: float
    """Mean of each action's shortest possible run time."""
    cpu_busy: float
    """Fraction of the core-seconds until the end during which actions ran."""
    gpu_busy: float


def compute_statistics(result: SimResult) -> SimStatistics:
    acts = np.array([record.act_s for record in result.records] or [0.0])
    queue = np.array([record.started - record.submitted for record in result.records] or [0.0])
    return SimStatistics(
        actions=len(result.records),
        missed=result.missed,
        act=float(acts.mean()),
        p50=float(np.median(acts)),
        p99=float(np.percentile(acts, 99)),
        queue=float(queue.mean()),
        suite=_mean(
            [r.act_s for r in result.records if r.work.resource_kind is ResourceKind.CPU and len(r.work.choices) > 1]
        ),
        command=_mean(
            [r.act_s for r in result.records if r.work.resource_kind is ResourceKind.CPU and len(r.work.choices) == 1]
        ),
        score=_mean([r.act_s for r in result.records if r.work.resource_kind is ResourceKind.GPU]),
        call=_mean([r.act_s for r in result.records if r.work.resource_kind is ResourceKind.API]),
        step=result.task_ends.get("ai-coding", result.end_s),
        floor=_mean([record.work.fastest_s for record in result.records]),
        cpu_busy=_utilization(result, ResourceKind.CPU, result.cluster.cores),
        gpu_busy=_utilization(result, ResourceKind.GPU, result.cluster.gpus),
    )


def _utilization(result: SimResult, resource_kind: ResourceKind, units: int) -> float:
    used = sum(
        piece.units * (piece.end - piece.start) for piece in result.segments if piece.resource_kind is resource_kind
    )
    return used / (units * result.end_s) if units and result.end_s else 0.0


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else 0.0
