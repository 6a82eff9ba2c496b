"""An action's life as spans, made from the timestamps of its rows. Pure: rows in, spans out.

One trace for each action: `create action` from admission to settling, and below it, for each attempt, `queue wait`,
`grant` (until the manager's running commit) and `process action` (its monotonic time); then `settle`. Below `process
action` is what its manager kept of it: of a score its wait for a device, its batches, and copies of weights for them.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Literal, NamedTuple
from uuid import UUID

from arl_core.domain.states import ActionOutcome, ActionState

__all__ = [
    "GATEWAY_TRACESTATE",
    "ActionHistory",
    "ActionSpan",
    "AttemptRecord",
    "NodeStage",
    "SpanKind",
    "TraceContext",
    "context_of",
    "root_span_id",
    "spans_of",
]

GATEWAY_TRACESTATE = "tangram=root"
"""The tracestate of an action whose client sent no trace context: the action's own span begins the trace."""
ERROR_OUTCOMES = frozenset(
    {
        ActionOutcome.INFRA_ERROR,
        ActionOutcome.USER_TIMEOUT,
        ActionOutcome.LIMIT_EXCEEDED,
        ActionOutcome.DEADLINE_IN_QUEUE,
    }
)
"""A program that fails by itself is no error of its trace: in training most do."""

Attributes = tuple[tuple[str, str | int], ...]


SpanKind = Literal["internal", "producer", "consumer"]


class TraceContext(NamedTuple):
    """Which trace an action belongs to. `parent_id` is the client's span, if it sent one."""

    trace_id: bytes
    parent_id: bytes | None
    sampled: bool | None
    """By the client; None where it did not say."""


class AttemptRecord(NamedTuple):
    """One grant and what became of it."""

    grant_no: int
    node: str | None
    granted_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    """None while it lasts."""
    reason: str | None = None
    """Why it ended without settling the action."""


class NodeStage(NamedTuple):
    """A part of what a manager did with the attempt that settled an action; in microseconds since it was running."""

    name: str
    at_us: int
    us: int
    restore_us: int | None = None
    """Of a batch: what it waited for its service's weights, where they were not on the device."""
    error: str | None = None
    attributes: Attributes = ()


class ActionHistory(NamedTuple):
    """An action with all its attempts."""

    id: UUID
    task: str
    kind: str
    state: ActionState
    created_at: datetime
    trajectory: str | None = None
    outcome: ActionOutcome | None = None
    reason: str | None = None
    settled_at: datetime | None = None
    run_us: int | None = None
    """Of the attempt that settled it, by the manager's monotonic clock."""
    node_us: int | None = None
    """Likewise, with what it waited for a device on its node, where its manager says so."""
    stages: tuple[NodeStage, ...] = ()
    earlier_attempts: tuple[AttemptRecord, ...] = ()
    """Those that ended without settling it, in order."""
    current_attempt: AttemptRecord | None = None
    """The one that holds it, or that held it when it settled."""
    traceparent: str | None = None
    tracestate: str | None = None

    @property
    def context(self) -> TraceContext:
        return context_of(self.id, self.traceparent, self.tracestate)

    @property
    def attempts(self) -> tuple[AttemptRecord, ...]:
        return (
            (*self.earlier_attempts, self.current_attempt)
            if self.current_attempt is not None
            else self.earlier_attempts
        )

    @property
    def has_failed(self) -> bool:
        """It settled by an error, or some attempt of it was lost."""
        return self.outcome in ERROR_OUTCOMES or bool(self.earlier_attempts)

    @property
    def act_s(self) -> float:
        """Action completion time; 0 while it is not settled."""
        return (self.settled_at - self.created_at).total_seconds() if self.settled_at is not None else 0.0


class ActionSpan(NamedTuple):
    """Ids are made from the action's, so that a span that is sent twice is the same one."""

    name: str
    span_id: bytes
    parent_id: bytes | None
    start: datetime
    end: datetime | None
    kind: SpanKind = "internal"
    attempt: int | None = None
    """Its grant_no."""
    error: str | None = None
    attributes: Attributes = ()
    """With few values, each of many spans."""
    unique_attributes: Attributes = ()
    """What only this span has."""


def context_of(action: UUID, traceparent: str | None, tracestate: str | None) -> TraceContext:
    """Without a client's context the trace is the one that the gateway made, or named after the action."""
    if traceparent is None:
        return TraceContext(trace_id=action.bytes, parent_id=None, sampled=None)
    _, trace_id, parent_id, flags = traceparent.split("-")[:4]
    if tracestate == GATEWAY_TRACESTATE:
        return TraceContext(trace_id=bytes.fromhex(trace_id), parent_id=None, sampled=None)
    sampled = bool(int(flags, 16) & 1)
    return TraceContext(trace_id=bytes.fromhex(trace_id), parent_id=bytes.fromhex(parent_id), sampled=sampled)


def root_span_id(action: UUID) -> bytes:
    """Of the action's first span, on which the others hang."""
    return _span_ids(action, 0)[0]


def spans_of(history: ActionHistory, context: TraceContext | None = None) -> Iterator[ActionSpan]:
    """The root first, the others in order of their beginning. An end that is not there yet is None."""
    root, settle, _ = _span_ids(history.id, 0)
    error = (history.reason or str(history.outcome)) if history.outcome in ERROR_OUTCOMES else None
    yield _root_span(history, root, (context or history.context).parent_id, error)
    since = history.created_at
    for attempt in history.attempts:
        yield from _attempt_spans(history, attempt, root, since, error)
        since = attempt.ended_at or since
    if history.current_attempt is None:
        number = history.earlier_attempts[-1].grant_no + 1 if history.earlier_attempts else 1
        wait, *_ = _span_ids(history.id, number)
        yield ActionSpan(
            "queue wait", wait, root, since, history.settled_at, attempt=number, attributes=_attempt_attributes(number)
        )
    if history.settled_at is not None:
        finished = _finished_at(history, history.current_attempt) if history.current_attempt is not None else None
        yield ActionSpan("settle", settle, root, finished or history.settled_at, history.settled_at)


def _root_span(history: ActionHistory, span_id: bytes, parent_id: bytes | None, error: str | None) -> ActionSpan:
    return ActionSpan(
        "create action",
        span_id,
        parent_id,
        history.created_at,
        history.settled_at,
        kind="producer",
        error=error,
        attributes=(
            ("messaging.system", "tangram"),
            ("messaging.operation.type", "create"),
            ("messaging.destination.name", history.task),
            ("tangram.kind", history.kind),
            ("tangram.attempts", len(history.attempts)),
            *((("tangram.outcome", history.outcome.value),) if history.outcome is not None else ()),
            *((("tangram.reason", history.reason),) if history.reason is not None else ()),
        ),
        unique_attributes=(
            ("messaging.message.id", str(history.id)),
            *((("tangram.trajectory", history.trajectory),) if history.trajectory is not None else ()),
        ),
    )


def _attempt_spans(
    history: ActionHistory, attempt: AttemptRecord, root: bytes, since: datetime, error: str | None
) -> Iterator[ActionSpan]:
    """`error` is the action's, which the attempt that settled it shares."""
    number, begun = attempt.grant_no, attempt.started_at
    wait, grant, process = _span_ids(history.id, number)
    numbered = _attempt_attributes(number)
    on_node = (*numbered, ("tangram.node", attempt.node)) if attempt.node is not None else numbered
    yield ActionSpan("queue wait", wait, root, since, attempt.granted_at, attempt=number, attributes=numbered)
    yield ActionSpan(
        "grant",
        grant,
        root,
        attempt.granted_at,
        begun or attempt.ended_at,
        attempt=number,
        error=attempt.reason if begun is None else None,
        attributes=on_node,
    )
    if begun is not None:
        yield ActionSpan(
            "process action",
            process,
            root,
            begun,
            _finished_at(history, attempt),
            kind="consumer",
            attempt=number,
            error=error if attempt is history.current_attempt else attempt.reason,
            attributes=(("messaging.system", "tangram"), ("messaging.operation.type", "process"), *on_node),
        )
        if attempt is history.current_attempt:
            yield from _stage_spans(history, number, process, begun)


def _stage_spans(
    history: ActionHistory, number: int, process_span_id: bytes, started_at: datetime
) -> Iterator[ActionSpan]:
    """`process`: the span that they are parts of."""
    for at, stage in enumerate(sorted(history.stages, key=lambda stage: stage.at_us)):
        span, restore, _ = _span_ids(history.id, number, at + 1)
        start, end = (
            _offset_time(history, started_at, stage.at_us),
            _offset_time(history, started_at, stage.at_us + stage.us),
        )
        attributes = (*_attempt_attributes(number), *stage.attributes)
        yield ActionSpan(
            stage.name,
            span,
            process_span_id,
            start,
            end,
            attempt=number,
            error=stage.error,
            unique_attributes=attributes,
        )
        if stage.restore_us is not None:
            restored = min(end, _offset_time(history, started_at, stage.at_us + stage.restore_us))
            yield ActionSpan(
                "restore weights",
                restore,
                span,
                start,
                restored,
                attempt=number,
                attributes=_attempt_attributes(number),
            )


def _offset_time(history: ActionHistory, moment: datetime, us: int) -> datetime:
    """No part of an action is after its end, whatever two clocks say."""
    later = moment + timedelta(microseconds=us)
    return min(later, history.settled_at) if history.settled_at is not None else later


def _attempt_attributes(grant_no: int) -> Attributes:
    return (("tangram.attempt", grant_no),)


def _finished_at(history: ActionHistory, attempt: AttemptRecord) -> datetime | None:
    """When the work of an attempt was over: its measured run where it settled the action, else its end."""
    begun, ended = attempt.started_at, attempt.ended_at
    us = history.run_us if history.node_us is None else history.node_us
    if attempt is not history.current_attempt or begun is None or ended is None or us is None:
        return ended
    return min(begun + timedelta(microseconds=us), ended)


def _span_ids(action: UUID, number: int, stage: int = 0) -> tuple[bytes, bytes, bytes]:
    part = stage.to_bytes(4, "big") if stage else b""
    digest = blake2b(action.bytes + number.to_bytes(4, "big") + part, digest_size=24).digest()
    return digest[:8], digest[8:16], digest[16:]
