"""The time of each rollout, divided into waiting, computing and holding cores that compute nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import pairwise

from arl_bench.demo.policies import PolicyRun
from arl_bench.demo.rollout import DemoRollout
from arl_wire.actions.action import Action

__all__ = ["RolloutSpan", "SpanKind", "rollout_spans"]


class SpanKind(StrEnum):
    COMPUTING = "computing"
    HELD_IDLE = "cores held, idle"
    WAITING = "waiting for cores"


@dataclass(frozen=True, slots=True)
class RolloutSpan:
    """A part of a rollout. Times are seconds since the first action of the run was submitted."""

    kind: SpanKind
    start_s: float
    end_s: float


def rollout_spans(run: PolicyRun) -> list[list[RolloutSpan]]:
    """Return the spans of each rollout, those that end first at the beginning. Spans of one rollout do not overlap.

    Only actions that need cores count. A pod is held from its first grant until the last action has settled.
    """
    if not run.actions:
        return []
    begin = min(action.created_at for action in run.actions)
    rows = [_spans_of(rollout, begin, has_pod=run.pod_cores is not None) for rollout in run.rollouts]
    return sorted((row for row in rows if row), key=lambda row: row[-1].end_s)


def _spans_of(rollout: DemoRollout, begin: datetime, *, has_pod: bool) -> list[RolloutSpan]:
    actions = [action for action in rollout.actions if action.kind == "exec" and action.granted_at is not None]
    marks = sorted((mark for action in actions for mark in _marks(action, begin)), key=lambda mark: mark[0])
    if not marks:
        return []
    pod_start_s = min(_seconds(action.granted_at, begin) for action in actions) if has_pod else float("inf")
    spans: list[RolloutSpan] = []
    counts = dict.fromkeys(SpanKind, 0)
    for (at_s, kind, change), (until_s, _, _) in pairwise(marks):
        counts[kind] += change
        found = _kind_of(counts, is_held=at_s >= pod_start_s)
        if found is not None and until_s > at_s:
            spans.append(RolloutSpan(found, at_s, until_s))
    return list(_merged(spans))


def _marks(action: Action, begin: datetime) -> Iterator[tuple[float, SpanKind, int]]:
    """Yield when the action starts and ends to wait, to hold cores and to compute."""
    created_s, granted_s, settled_s = (
        _seconds(moment, begin) for moment in (action.created_at, action.granted_at, action.settled_at)
    )
    yield from ((created_s, SpanKind.WAITING, 1), (granted_s, SpanKind.WAITING, -1))
    yield from ((granted_s, SpanKind.HELD_IDLE, 1), (settled_s, SpanKind.HELD_IDLE, -1))
    if action.started_at is not None:
        started_s = _seconds(action.started_at, begin)
        yield from ((started_s, SpanKind.COMPUTING, 1), (settled_s, SpanKind.COMPUTING, -1))


def _kind_of(counts: dict[SpanKind, int], *, is_held: bool) -> SpanKind | None:
    """Return the kind of a moment; None if the rollout neither waits nor holds cores: the model thinks."""
    if counts[SpanKind.COMPUTING]:
        return SpanKind.COMPUTING
    if is_held or counts[SpanKind.HELD_IDLE]:
        return SpanKind.HELD_IDLE
    return SpanKind.WAITING if counts[SpanKind.WAITING] else None


def _merged(spans: Sequence[RolloutSpan]) -> Iterator[RolloutSpan]:
    """Yield the spans with adjacent spans of one kind joined."""
    last: RolloutSpan | None = None
    for span in spans:
        if last is not None and (last.kind, last.end_s) == (span.kind, span.start_s):
            last = RolloutSpan(span.kind, last.start_s, span.end_s)
        else:
            if last is not None:
                yield last
            last = span
    if last is not None:
        yield last


def _seconds(moment: datetime | None, begin: datetime) -> float:
    return (moment - begin).total_seconds() if moment is not None else 0.0
