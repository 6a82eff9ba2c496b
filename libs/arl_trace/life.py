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

from arl_core.states import Outcome, State

__all__ = [
    "MADE_HERE",
    "Attempt",
    "Life",
    "Span",
    "SpanKind",
    "Stage",
    "TraceContext",
    "context_of",
    "root_id",
    "spans_of",
]

MADE_HERE = "tangram=root"
"""The tracestate of an action whose client sent no trace context: the action's own span begins the trace."""
FAILED = frozenset({Outcome.INFRA_ERROR, Outcome.USER_TIMEOUT, Outcome.LIMIT_EXCEEDED, Outcome.DEADLINE_IN_QUEUE})
"""A program that fails by itself is no error of its trace: in training most do."""

Attributes = tuple[tuple[str, str | int], ...]


SpanKind = Literal["internal", "producer", "consumer"]


class TraceContext(NamedTuple):
    """Which trace an action belongs to. `parent_id` is the client's span, if it sent one."""

    trace_id: bytes
    parent_id: bytes | None
    sampled: bool | None
    """By the client; None where it did not say."""


class Attempt(NamedTuple):
    """One grant and what became of it."""

    grant_no: int
    node: str | None
    granted_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    """None while it lasts."""
    reason: str | None = None
    """Why it ended without settling the action."""


class Stage(NamedTuple):
    """A part of what a manager did with the attempt that settled an action; in microseconds since it was running."""

    name: str
    at_us: int
    us: int
    restore_us: int | None = None
    """Of a batch: what it waited for its service's weights, where they were not on the device."""
    error: str | None = None
    about: Attributes = ()


class Life(NamedTuple):
    """An action with all its attempts."""

    id: UUID
    task: str
    kind: str
    state: State
    created_at: datetime
    trajectory: str | None = None
    outcome: Outcome | None = None
    reason: str | None = None
    settled_at: datetime | None = None
    run_us: int | None = None
    """Of the attempt that settled it, by the manager's monotonic clock."""
    node_us: int | None = None
    """Likewise, with what it waited for a device on its node, where its manager says so."""
    stages: tuple[Stage, ...] = ()
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


class Span(NamedTuple):
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
    own: Attributes = ()
    """What only this span has."""


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


def spans_of(life: Life, context: TraceContext | None = None) -> Iterator[Span]:
    """The root first, the others in order of their beginning. An end that is not there yet is None."""
    root, settle, _ = _ids(life.id, 0)
    error = (life.reason or str(life.outcome)) if life.outcome in FAILED else None
    yield _root(life, root, (context or life.context).parent_id, error)
    since = life.created_at
    for attempt in life.attempts:
        yield from _of_attempt(life, attempt, root, since, error)
        since = attempt.ended_at or since
    if life.own is None:
        number = life.earlier[-1].grant_no + 1 if life.earlier else 1
        wait, *_ = _ids(life.id, number)
        yield Span("queue wait", wait, root, since, life.settled_at, attempt=number, attributes=_numbered(number))
    if life.settled_at is not None:
        finished = _finished_at(life, life.own) if life.own is not None else None
        yield Span("settle", settle, root, finished or life.settled_at, life.settled_at)


def _root(life: Life, span_id: bytes, parent_id: bytes | None, error: str | None) -> Span:
    return Span(
        "create action",
        span_id,
        parent_id,
        life.created_at,
        life.settled_at,
        kind="producer",
        error=error,
        attributes=(
            ("messaging.system", "tangram"),
            ("messaging.operation.type", "create"),
            ("messaging.destination.name", life.task),
            ("tangram.kind", life.kind),
            ("tangram.attempts", len(life.attempts)),
            *((("tangram.outcome", life.outcome.value),) if life.outcome is not None else ()),
            *((("tangram.reason", life.reason),) if life.reason is not None else ()),
        ),
        own=(
            ("messaging.message.id", str(life.id)),
            *((("tangram.trajectory", life.trajectory),) if life.trajectory is not None else ()),
        ),
    )


def _of_attempt(life: Life, attempt: Attempt, root: bytes, since: datetime, error: str | None) -> Iterator[Span]:
    """`error` is the action's, which the attempt that settled it shares."""
    number, begun = attempt.grant_no, attempt.started_at
    wait, grant, process = _ids(life.id, number)
    numbered = _numbered(number)
    on_node = (*numbered, ("tangram.node", attempt.node)) if attempt.node is not None else numbered
    yield Span("queue wait", wait, root, since, attempt.granted_at, attempt=number, attributes=numbered)
    yield Span(
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
        yield Span(
            "process action",
            process,
            root,
            begun,
            _finished_at(life, attempt),
            kind="consumer",
            attempt=number,
            error=error if attempt is life.own else attempt.reason,
            attributes=(("messaging.system", "tangram"), ("messaging.operation.type", "process"), *on_node),
        )
        if attempt is life.own:
            yield from _of_stages(life, number, process, begun)


def _of_stages(life: Life, number: int, process: bytes, begun: datetime) -> Iterator[Span]:
    """`process`: the span that they are parts of."""
    for at, stage in enumerate(sorted(life.stages, key=lambda stage: stage.at_us)):
        span, restore, _ = _ids(life.id, number, at + 1)
        start, end = _later(life, begun, stage.at_us), _later(life, begun, stage.at_us + stage.us)
        attributes = (*_numbered(number), *stage.about)
        yield Span(stage.name, span, process, start, end, attempt=number, error=stage.error, own=attributes)
        if stage.restore_us is not None:
            restored = min(end, _later(life, begun, stage.at_us + stage.restore_us))
            yield Span("restore weights", restore, span, start, restored, attempt=number, attributes=_numbered(number))


def _later(life: Life, moment: datetime, us: int) -> datetime:
    """No part of an action is after its end, whatever two clocks say."""
    later = moment + timedelta(microseconds=us)
    return min(later, life.settled_at) if life.settled_at is not None else later


def _numbered(attempt: int) -> Attributes:
    return (("tangram.attempt", attempt),)


def _finished_at(life: Life, attempt: Attempt) -> datetime | None:
    """When the work of an attempt was over: its measured run where it settled the action, else its end."""
    begun, ended = attempt.started_at, attempt.ended_at
    us = life.run_us if life.node_us is None else life.node_us
    if attempt is not life.own or begun is None or ended is None or us is None:
        return ended
    return min(begun + timedelta(microseconds=us), ended)


def _ids(action: UUID, number: int, stage: int = 0) -> tuple[bytes, bytes, bytes]:
    part = stage.to_bytes(4, "big") if stage else b""
    digest = blake2b(action.bytes + number.to_bytes(4, "big") + part, digest_size=24).digest()
    return digest[:8], digest[8:16], digest[16:]
