"""An action's life as spans, made from the timestamps of its rows. Pure: rows in, spans out.

One trace for each action: `create action` from admission to settling, and below it, for each attempt, `queue wait`,
`grant` (until the manager's running commit) and `process action` (its monotonic time); then `settle`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import blake2b
from uuid import UUID

from arl_core.states import Outcome, State

__all__ = [
    "MADE_HERE",
    "Attempt",
    "Life",
    "Span",
    "SpanKind",
    "TraceContext",
    "context_of",
    "root_id",
    "spans_of",
]

MADE_HERE = "tangram=root"
"""The tracestate of an action whose client sent no trace context: the action's own span begins the trace."""
FAILED = frozenset({Outcome.INFRA_ERROR, Outcome.USER_TIMEOUT, Outcome.LIMIT_EXCEEDED, Outcome.DEADLINE_IN_QUEUE})
"""A program that fails by itself is no error of its trace: in training most do."""

Attributes = Mapping[str, str | int]


class SpanKind(StrEnum):
    INTERNAL = "internal"
    PRODUCER = "producer"
    CONSUMER = "consumer"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceContext:
    """Which trace an action belongs to. `parent_id` is the client's span, if it sent one."""

    trace_id: bytes
    parent_id: bytes | None
    sampled: bool | None
    """By the client; None where it did not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One grant and what became of it."""

    grant_no: int
    node: str | None
    granted_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    """None while it lasts."""
    reason: str | None = None
    """Why it ended without settling the action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """An action with all its attempts."""

    id: UUID
    task: str
    kind: str
    trajectory: str | None = None
    state: State
    outcome: Outcome | None = None
    reason: str | None = None
    created_at: datetime
    settled_at: datetime | None = None
    run_us: int | None = None
    """Of the attempt that settled it, by the manager's monotonic clock."""
    earlier: tuple[Attempt, ...] = ()
    """Those that ended without settling it, in order."""
    own: Attempt | None = None
    """The one that holds it, or that held it when it settled."""
    traceparent: str | None = None
    tracestate: str | None = None

    @property
    def context(self) -> TraceContext:
        return context_of(self.id, self.traceparent, self.tracestate)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return (*self.earlier, self.own) if self.own is not None else self.earlier

    @property
    def failed(self) -> bool:
        """It settled by an error, or some attempt of it was lost."""
        return self.outcome in FAILED or bool(self.earlier)

    @property
    def act_s(self) -> float:
        """Action completion time; 0 while it is not settled."""
        return (self.settled_at - self.created_at).total_seconds() if self.settled_at is not None else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Ids are made from the action's, so that a span that is sent twice is the same one."""

    name: str
    kind: SpanKind = SpanKind.INTERNAL
    span_id: bytes
    parent_id: bytes | None
    start: datetime
    end: datetime | None
    attempt: int | None = None
    """Its grant_no."""
    error: str | None = None
    attributes: Attributes = field(default_factory=dict)


def context_of(action: UUID, traceparent: str | None, tracestate: str | None) -> TraceContext:
    """Without a client's context the trace is the one that the gateway made, or named after the action."""
    if traceparent is None:
        return TraceContext(trace_id=action.bytes, parent_id=None, sampled=None)
    _, trace_id, parent_id, flags = traceparent.split("-")[:4]
    if tracestate == MADE_HERE:
        return TraceContext(trace_id=bytes.fromhex(trace_id), parent_id=None, sampled=None)
    sampled = bool(int(flags, 16) & 1)
    return TraceContext(trace_id=bytes.fromhex(trace_id), parent_id=bytes.fromhex(parent_id), sampled=sampled)


def root_id(action: UUID) -> bytes:
    """Of the action's first span, on which the others hang."""
    return _ids(action, 0)[0]


def spans_of(life: Life) -> Iterator[Span]:
    """The root first, the others in order of their beginning. An end that is not there yet is None."""
    root = root_id(life.id)
    yield _root(life, root)
    since = life.created_at
    for attempt in life.attempts:
        yield from _of_attempt(life, attempt, root, since)
        since = attempt.ended_at or since
    if life.own is None:
        number = life.attempts[-1].grant_no + 1 if life.attempts else 1
        wait, *_ = _ids(life.id, number)
        yield Span(name="queue wait", span_id=wait, parent_id=root, start=since, end=life.settled_at, attempt=number)
    if life.settled_at is not None:
        finished = _finished_at(life, life.own) if life.own is not None else None
        start = finished or life.settled_at
        yield Span(name="settle", span_id=_ids(life.id, 0)[1], parent_id=root, start=start, end=life.settled_at)


def _root(life: Life, span_id: bytes) -> Span:
    about: dict[str, str | int] = {
        "messaging.system": "tangram",
        "messaging.operation.type": "create",
        "messaging.destination.name": life.task,
        "messaging.message.id": str(life.id),
        "tangram.kind": life.kind,
        "tangram.attempts": len(life.attempts),
    }
    for name, value in (("trajectory", life.trajectory), ("outcome", life.outcome), ("reason", life.reason)):
        if value is not None:
            about[f"tangram.{name}"] = str(value)
    return Span(
        name="create action",
        kind=SpanKind.PRODUCER,
        span_id=span_id,
        parent_id=life.context.parent_id,
        start=life.created_at,
        end=life.settled_at,
        error=_error_of(life),
        attributes=about,
    )


def _of_attempt(life: Life, attempt: Attempt, root: bytes, since: datetime) -> Iterator[Span]:
    wait, grant, process = _ids(life.id, attempt.grant_no)
    number = attempt.grant_no
    yield Span(name="queue wait", span_id=wait, parent_id=root, start=since, end=attempt.granted_at, attempt=number)
    on_node = {"tangram.node": attempt.node} if attempt.node is not None else {}
    begun = attempt.started_at
    yield Span(
        name="grant",
        span_id=grant,
        parent_id=root,
        start=attempt.granted_at,
        end=begun or attempt.ended_at,
        attempt=number,
        error=attempt.reason if begun is None else None,
        attributes=on_node,
    )
    if begun is None:
        return
    yield Span(
        name="process action",
        kind=SpanKind.CONSUMER,
        span_id=process,
        parent_id=root,
        start=begun,
        end=_finished_at(life, attempt),
        attempt=number,
        error=_error_of(life) if attempt is life.own else attempt.reason,
        attributes={"messaging.system": "tangram", "messaging.operation.type": "process", **on_node},
    )


def _finished_at(life: Life, attempt: Attempt) -> datetime | None:
    """When the work of an attempt was over: its measured run where it settled the action, else its end."""
    begun, ended = attempt.started_at, attempt.ended_at
    if attempt is not life.own or begun is None or ended is None or life.run_us is None:
        return ended
    return min(begun + timedelta(microseconds=life.run_us), ended)


def _error_of(life: Life) -> str | None:
    return (life.reason or str(life.outcome)) if life.outcome in FAILED else None


def _ids(action: UUID, number: int) -> tuple[bytes, bytes, bytes]:
    digest = blake2b(action.bytes + number.to_bytes(4, "big"), digest_size=24).digest()
    return digest[:8], digest[8:16], digest[16:]
