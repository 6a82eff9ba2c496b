"""What the leader tells of its rounds and of what settled, where somebody wants to hear of it."""

from collections.abc import Iterable, Sequence
from uuid import UUID

from arl_core.domain.model import Grant
from arl_kit.telemetry import current_traceparent, new_traceparent
from arl_scheduler.leader.straggler_detector import DetectedStraggler
from arl_trace.export import Exporter, Round

__all__ = ["SchedulerTraces"]


class SchedulerTraces:
    """Without an exporter nothing is kept and nothing is read."""

    def __init__(self, exporter: Exporter | None = None) -> None:
        self._exporter = exporter

    def reset(self) -> None:
        """The index is made from rows: what settled just before, it does not know of."""
        if self._exporter is not None:
            self._exporter.look_back()

    def mark_finished(self, ids: Iterable[UUID]) -> None:
        """These settled, or are queued again."""
        if self._exporter is not None:
            self._exporter.over(ids)

    def mark_stragglers(self, stragglers: Iterable[DetectedStraggler]) -> None:
        """These run far longer than others of their classes."""
        if self._exporter is not None:
            for each in stragglers:
                self._exporter.straggles(*each.fence, limit_s=each.limit_s)

    def export_round(self, grants: Sequence[Grant], *, started: float, decided: float, ended: float) -> None:
        """A round is committed; times by the database's clock. Its hops go under the same trace."""
        if self._exporter is None:
            return
        _, trace_id, span_id, _ = (current_traceparent.get() or new_traceparent()).split("-")
        link = bytes.fromhex(trace_id), bytes.fromhex(span_id)
        granted = [(grant.fence.action_id, grant.fence.grant_no) for grant in grants]
        self._exporter.round(Round(link=link, began=started, decided=decided, ended=ended, granted=granted))
