"""What a simulation found: each action's times, and their statistics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np

from arl_sim.site import Site
from arl_sim.workload import Need, Work

__all__ = ["Piece", "Record", "Result", "Statistics", "statistics_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One action that ended. Times in seconds since the simulation began."""

    id: UUID
    rollout: int
    task: str
    work: Work
    node: int
    submitted: float
    started: float
    ended: float
    restore_s: float
    """Of which it waited for its service to be brought to its devices."""

    @property
    def act_s(self) -> float:
        return self.ended - self.submitted


@dataclass(frozen=True, slots=True)
class Piece:
    """What a rollout had of a node for a while."""

    rollout: int
    node: int
    need: Need
    units: float
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Result:
    site: Site
    records: tuple[Record, ...]
    task_ends: Mapping[str, float]
    pieces: tuple[Piece, ...]
    rounds: int

    @property
    def ends(self) -> float:
        return max(self.task_ends.values(), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Seconds, but for the utilisations and counts. Means of ACTs: of all, of elastic CPU actions, of scores."""

    actions: float
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
    """When the last coding trajectory ended; of all tasks, where none codes."""
    floor: float
    """Mean of each action's shortest possible run."""
    cpu_busy: float
    """Part of the core-seconds until the last end on which actions ran."""
    gpu_busy: float


def statistics_of(result: Result) -> Statistics:
    acts = np.array([record.act_s for record in result.records])
    queue = np.array([record.started - record.submitted for record in result.records])
    return Statistics(
        actions=len(acts),
        act=float(acts.mean()),
        p50=float(np.median(acts)),
        p99=float(np.percentile(acts, 99)),
        queue=float(queue.mean()),
        suite=_mean([r.act_s for r in result.records if r.work.need is Need.CPU and len(r.work.choices) > 1]),
        command=_mean([r.act_s for r in result.records if r.work.need is Need.CPU and len(r.work.choices) == 1]),
        score=_mean([r.act_s for r in result.records if r.work.need is Need.GPU]),
        call=_mean([r.act_s for r in result.records if r.work.need is Need.API]),
        step=result.task_ends.get("ai-coding", result.ends),
        floor=_mean([record.work.fastest_s for record in result.records]),
        cpu_busy=_busy(result, Need.CPU, result.site.cores),
        gpu_busy=_busy(result, Need.GPU, result.site.gpus),
    )


def _busy(result: Result, need: Need, units: int) -> float:
    used = sum(piece.units * (piece.end - piece.start) for piece in result.pieces if piece.need is need)
    return used / (units * result.ends) if units and result.ends else 0.0


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else 0.0
