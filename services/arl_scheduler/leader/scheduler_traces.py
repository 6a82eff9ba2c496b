"""Traces of rounds and of ended attempts, if an exporter is configured."""

from collections.abc import Iterable, Sequence
from uuid import UUID

from arl_core.domain.model import Grant
from arl_kit.telemetry import current_traceparent, new_traceparent
from arl_scheduler.leader.straggler_detector import DetectedStraggler
from arl_trace.export import Exporter, Round

__all__ = ["SchedulerTraces"]


class SchedulerTraces:
    """A recorder of traces. If there is no exporter, nothing is kept or read.

    Rounds are recorded only if `with_rounds` is True: a busy scheduler makes many of them.
    """

    def __init__(self, exporter: Exporter | None = None, *, with_rounds: bool = False) -> None:
        self._exporter = exporter
        self._with_rounds = with_rounds

    def reset(self) -> None:
        """Look back for actions that settled before the index was rebuilt."""
        if self._exporter is not None:
            self._exporter.look_back()

    def mark_finished(self, ids: Iterable[UUID]) -> None:
        """Record actions that settled or were re-queued."""
        if self._exporter is not None:
            self._exporter.over(ids)

    def mark_stragglers(self, stragglers: Iterable[DetectedStraggler]) -> None:
        """Record actions that run far longer than others of their class."""
        if self._exporter is not None:
            for each in stragglers:
                self._exporter.record_straggler(*each.fence, limit_s=each.limit_s)

    def export_round(self, grants: Sequence[Grant], *, started: float, decided: float, ended: float) -> None:
        """Record a committed round, with times of the database's clock. Its notifications belong to the same trace."""
        if self._exporter is None or not self._with_rounds:
            return
        _, trace_id, span_id, _ = (current_traceparent.get() or new_traceparent()).split("-")
        link = bytes.fromhex(trace_id), bytes.fromhex(span_id)
        granted = [(grant.fence.action_id, grant.fence.grant_no) for grant in grants]
        self._exporter.round(Round(link=link, began=started, decided=decided, ended=ended, granted=granted))
