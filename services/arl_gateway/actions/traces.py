"""Timelines of actions, built from their rows on request."""

from datetime import datetime
from uuid import UUID

from arl_gateway.http.auth import Caller
from arl_store.tx import PostgresStore
from arl_trace import repository
from arl_trace.history import ActionHistory, ActionSpan, spans_of
from arl_wire.actions.traces import ActionTrace, TraceSpan
from arl_wire.errors import NotFound

__all__ = ["TraceService"]


class TraceService:
    """Timelines of actions, for clients."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store

    async def get(self, id: UUID, caller: Caller) -> ActionTrace:
        """Return the timeline of an action of the caller's project, settled or not. Raises NotFound."""
        async with self._store.read() as tx:
            rows = await repository.histories(tx, [id])
        if not rows or rows[0].project_id != caller.project_id:
            raise NotFound(f"action {id} does not exist in this project")
        return _build_trace(repository.history_of(rows[0]))


def _build_trace(history: ActionHistory) -> ActionTrace:
    return ActionTrace(
        id=history.id,
        trace_id=history.context.trace_id.hex(),
        state=history.state,
        outcome=history.outcome,
        duration_ms=_duration_ms(history.created_at, history.settled_at),
        spans=[_build_span(span, history.created_at) for span in spans_of(history)],
    )


def _build_span(span: ActionSpan, created_at: datetime) -> TraceSpan:
    return TraceSpan.model_validate(
        {
            "name": span.name,
            "kind": span.kind,
            "span_id": span.span_id.hex(),
            "parent_span_id": span.parent_id.hex() if span.parent_id is not None else None,
            "attempt": span.attempt,
            "started_at": span.start,
            "ended_at": span.end,
            "offset_ms": _duration_ms(created_at, span.start),
            "duration_ms": _duration_ms(span.start, span.end),
            "error": span.error,
            "attributes": {name: str(value) for name, value in (*span.attributes, *span.unique_attributes)},
        }
    )


def _duration_ms(start: datetime, end: datetime | None) -> float | None:
    return round((end - start).total_seconds() * 1000, 3) if end is not None else None
