"""Spans of an action, computed from the timestamps of its rows. Pure: rows in, spans out.

Each action has one trace. Its root `create action` lasts from admission to settling. Below it, each attempt has `queue
wait`, `grant` (until the manager's running commit) and `process action` (its monotonic time); `settle` is last. Below
`process action` are the stages that the manager recorded: for a score its wait for a device, its batches, and the
copies of weights for them.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from hashlib import blake2b
from types import MappingProxyType
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
"""Outcomes that are errors of the trace. A failing program is not one of them: in training most programs fail."""

Attributes = tuple[tuple[str, str | int], ...]


SpanKind = Literal["internal", "producer", "consumer"]


class TraceContext(NamedTuple):
    """The trace of an action. `parent_id` is the client's span, if it sent one."""

    trace_id: bytes
    parent_id: bytes | None
    sampled: bool | None
    """Sampling decision of the client; None if it sent none."""


class AttemptRecord(NamedTuple):
    """A grant and its result."""

    grant_no: int
    node: str | None
    granted_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    """None while the attempt lasts."""
    reason: str | None = None
    """Reason why it ended without settling the action."""


class NodeStage(NamedTuple):
    """A stage of the attempt that settled an action, by its manager; in microseconds since the attempt was running."""

    name: str
    at_us: int
    us: int
    restore_us: int | None = None
    """Microseconds that a batch waited for its service's weights, if they were not on the device."""
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
    step: int | None = None
    is_critical: bool = False
    """True if its trajectory was expected to end its step last at the grant."""
    labels: Mapping[str, str] = MappingProxyType({})
    demand: Mapping[str, int] = MappingProxyType({})
    """Demanded amount by resource, such as `cpu_milli`."""
    exit_code: int | None = None
    """Exit code of the program in the attempt that settled the action."""
    outcome: ActionOutcome | None = None
    reason: str | None = None
    settled_at: datetime | None = None
    run_us: int | None = None
    """Microseconds of the attempt that settled it, by the manager's monotonic clock."""
    node_us: int | None = None
    """Microseconds of that attempt including its wait for a device on the node, if its manager reports this."""
    stages: tuple[NodeStage, ...] = ()
    earlier_attempts: tuple[AttemptRecord, ...] = ()
    """Attempts that ended without settling the action, in order."""
    current_attempt: AttemptRecord | None = None
    """The current attempt, or the attempt that settled the action."""
    traceparent: str | None = None
    tracestate: str | None = None

    @property
    def context(self) -> TraceContext:
        """Return the trace context of the action."""
        return context_of(self.id, self.traceparent, self.tracestate)

    @property
    def attempts(self) -> tuple[AttemptRecord, ...]:
        """Return all attempts in order, the current or settling one last."""
        return (
            (*self.earlier_attempts, self.current_attempt)
            if self.current_attempt is not None
            else self.earlier_attempts
        )

    @property
    def has_failed(self) -> bool:
        """Return True if the action settled with an error, or if an attempt was lost."""
        return self.outcome in ERROR_OUTCOMES or bool(self.earlier_attempts)

    @property
    def act_s(self) -> float:
        """Action completion time in seconds; 0 until the action has settled."""
        return (self.settled_at - self.created_at).total_seconds() if self.settled_at is not None else 0.0


class ActionSpan(NamedTuple):
    """A span of an action. Its ids derive from the action's id, so that a repeated export sends the same span."""

    name: str
    span_id: bytes
    parent_id: bytes | None
    start: datetime
    end: datetime | None
    kind: SpanKind = "internal"
    attempt: int | None = None
    """grant_no of the attempt."""
    error: str | None = None
    attributes: Attributes = ()
    """Attributes with few values, common to many spans."""
    unique_attributes: Attributes = ()
    """Attributes of this span only."""


def context_of(action: UUID, traceparent: str | None, tracestate: str | None) -> TraceContext:
    """Return the trace context of an action. Without a client's context, it is the gateway's or the action's id."""
    if traceparent is None:
        return TraceContext(trace_id=action.bytes, parent_id=None, sampled=None)
    _, trace_id, parent_id, flags = traceparent.split("-")[:4]
    if tracestate == GATEWAY_TRACESTATE:
        return TraceContext(trace_id=bytes.fromhex(trace_id), parent_id=None, sampled=None)
    sampled = bool(int(flags, 16) & 1)
    return TraceContext(trace_id=bytes.fromhex(trace_id), parent_id=bytes.fromhex(parent_id), sampled=sampled)


def root_span_id(action: UUID) -> bytes:
    """Return the id of the action's first span, the ancestor of the others."""
    return _span_ids(action, 0)[0]


def spans_of(history: ActionHistory, context: TraceContext | None = None) -> Iterator[ActionSpan]:
    """Yield the root span first, the others in order of their start. The end is None while a span lasts."""
    root, settle, _ = _span_ids(history.id, 0)
    error = _error_of(history)
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


def _error_of(history: ActionHistory) -> str | None:
    """Return the cause of a failure. The reason of a timeout only names the limit."""
    if history.outcome not in ERROR_OUTCOMES:
        return None
    is_timeout = history.outcome is ActionOutcome.USER_TIMEOUT
    return str(history.outcome) if is_timeout else history.reason or str(history.outcome)


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
            *((f"tangram.demand.{name}", amount) for name, amount in history.demand.items()),
            *((("tangram.outcome", history.outcome.value),) if history.outcome is not None else ()),
            *((("tangram.reason", history.reason),) if history.reason is not None else ()),
        ),
        unique_attributes=(
            ("messaging.message.id", str(history.id)),
            *_trajectory_attributes(history),
            *((f"tangram.label.{name}", value) for name, value in history.labels.items()),
        ),
    )


def _trajectory_attributes(history: ActionHistory) -> Iterator[tuple[str, str | int]]:
    """Yield the trajectory and the step. `session.id` is the name for a trajectory in OpenTelemetry's conventions."""
    if history.trajectory is not None:
        yield from (("session.id", history.trajectory), ("tangram.trajectory", history.trajectory))
    if history.step is not None:
        yield "tangram.step", history.step
    if history.is_critical:
        yield "tangram.critical", True


def _attempt_spans(
    history: ActionHistory, attempt: AttemptRecord, root: bytes, since: datetime, error: str | None
) -> Iterator[ActionSpan]:
    """Yield the spans of an attempt. `error` is the action's error, which belongs to the attempt that settled it."""
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
            attributes=(
                *(("messaging.system", "tangram"), ("messaging.operation.type", "process"), *on_node),
                *_exit_attributes(history, attempt),
            ),
        )
        if attempt is history.current_attempt:
            yield from _stage_spans(history, number, process, begun)


def _exit_attributes(history: ActionHistory, attempt: AttemptRecord) -> Attributes:
    """Return the exit code of the program; only the attempt that settled the action has one."""
    if attempt is not history.current_attempt or history.exit_code is None:
        return ()
    return (("process.exit.code", history.exit_code),)


def _stage_spans(
    history: ActionHistory, number: int, process_span_id: bytes, started_at: datetime
) -> Iterator[ActionSpan]:
    """Yield the spans of the manager's stages, below the span `process_span_id`."""
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
    """Return the time `us` after `moment`, at most the settling time: two clocks may differ."""
    later = moment + timedelta(microseconds=us)
    return min(later, history.settled_at) if history.settled_at is not None else later


def _attempt_attributes(grant_no: int) -> Attributes:
    return (("tangram.attempt", grant_no),)


def _finished_at(history: ActionHistory, attempt: AttemptRecord) -> datetime | None:
    """Return the end of an attempt's work: by its measured run time if it settled the action, else its end."""
    begun, ended = attempt.started_at, attempt.ended_at
    us = history.run_us if history.node_us is None else history.node_us
    if attempt is not history.current_attempt or begun is None or ended is None or us is None:
        return ended
    return min(begun + timedelta(microseconds=us), ended)


def _span_ids(action: UUID, number: int, stage: int = 0) -> tuple[bytes, bytes, bytes]:
    part = stage.to_bytes(4, "big") if stage else b""
    digest = blake2b(action.bytes + number.to_bytes(4, "big") + part, digest_size=24).digest()
    return digest[:8], digest[8:16], digest[16:]
