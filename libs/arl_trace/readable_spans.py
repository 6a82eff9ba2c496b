"""OpenTelemetry spans, built from database rows after an action has settled.

The SDK's tracer records live spans with its own ids and clock. These spans have ended: their ids derive from the
action, so that a repeated export sends the same span, and their times are those of the rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.sdk.util import BoundedList
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from arl_trace.history import ActionHistory, ActionSpan, TraceContext, spans_of

__all__ = ["SpanBuilder", "SpanIds"]

SpanIds = tuple[bytes, bytes]
"""Trace id and span id."""
AttributeValue = str | int

_KINDS = {"internal": SpanKind.INTERNAL, "producer": SpanKind.PRODUCER, "consumer": SpanKind.CONSUMER}
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_UNSET = Status(StatusCode.UNSET)
_NO_PARENT = Context()
_STRAGGLER_LIMIT = "tangram.straggler.limit_ms"
"""Run time from which an attempt counted as a straggler of its class."""


class SpanBuilder:
    """A maker of `ReadableSpan`s with one resource, within the SDK's limits."""

    def __init__(self, *, sampler: Sampler, resource: Resource, limits: SpanLimits, version: str) -> None:
        self._sampler = sampler
        self._resource = resource
        self._limits = limits
        self._scope = InstrumentationScope("tangram", version)

    def sample(self, context: TraceContext, *, name: str, tracestate: str | None = None) -> SamplingResult:
        """Ask the sampler once about a trace; all its spans share the result. `name` is the name of the first span."""
        parent = self._parent_context(context, _trace_state(tracestate))
        around = set_span_in_context(NonRecordingSpan(parent), _NO_PARENT) if parent is not None else _NO_PARENT
        return self._sampler.should_sample(around, int.from_bytes(context.trace_id, "big"), name, SpanKind.PRODUCER)

    def is_sampled(self, context: TraceContext, *, name: str) -> bool:
        """Return True if the sampler takes this trace. `name` is the name of its first span."""
        return self.sample(context, name=name).decision is Decision.RECORD_AND_SAMPLE

    def action_spans(
        self,
        life: ActionHistory,
        context: TraceContext,
        sampling: SamplingResult,
        *,
        rounds: Mapping[int, SpanIds],
        straggler_limits_s: Mapping[int, float],
    ) -> list[ReadableSpan]:
        """Build the spans of a settled action.

        Args:
            life: The action, with all its attempts.
            context: The trace that it belongs to.
            sampling: Answer of `sample`; its attributes are added to the first span.
            rounds: Round of the scheduler that made each grant, by grant_no.
            straggler_limits_s: Seconds after which an attempt counted as a straggler, by grant_no.
        """
        end = life.settled_at or life.created_at
        state = sampling.trace_state or (_trace_state(life.tracestate) if context.parent_id is not None else None)
        # All spans but the first have a parent in the same trace. Each context is created with its span.
        contexts: dict[bytes, SpanContext] = {}
        parent = self._parent_context(context, state)
        if parent is not None and context.parent_id is not None:
            contexts[context.parent_id] = parent
        trace_id = int.from_bytes(context.trace_id, "big")
        built: list[ReadableSpan] = []
        for span in spans_of(life, context):
            own = SpanContext(trace_id, int.from_bytes(span.span_id, "big"), False, _SAMPLED, state)
            contexts[span.span_id] = own
            made_by = rounds.get(span.attempt or 0) if span.name == "grant" else None
            attributes = dict((*span.attributes, *span.unique_attributes))
            if span.name == "process action" and (limit_s := straggler_limits_s.get(span.attempt or 0)) is not None:
                attributes[_STRAGGLER_LIMIT] = round(1000 * limit_s)
            if not built and sampling.attributes:
                attributes |= sampling.attributes
            built.append(
                self._span(
                    span,
                    own,
                    contexts.get(span.parent_id) if span.parent_id is not None else None,
                    (span.start, span.end or end),
                    attributes=attributes,
                    links=(made_by,) if made_by is not None else (),
                )
            )
        return built

    def round_spans(
        self,
        ids: SpanIds,
        commit_id: bytes,
        times: tuple[datetime, datetime, datetime],
        *,
        granted: int,
        actions: Iterable[SpanIds],
    ) -> list[ReadableSpan]:
        """Build the spans of a round of the scheduler: the round, and below it the commit of its grants.

        Args:
            ids: Ids of the round's span.
            commit_id: Id of the commit's span.
            times: Start of the round, end of its decisions, and end of the round.
            granted: Number of grants.
            actions: First span of each granted action, to link to.
        """
        began, decided, ended = times
        trace_id, span_id = ids
        trace = int.from_bytes(trace_id, "big")
        root, commit = (
            SpanContext(trace, int.from_bytes(each, "big"), False, _SAMPLED) for each in (span_id, commit_id)
        )
        whole = ActionSpan("scheduler round", span_id, None, began, ended)
        part = ActionSpan("commit grants", commit_id, span_id, decided, ended)
        about: dict[str, AttributeValue] = {"messaging.system": "tangram", "tangram.granted": granted}
        return [
            self._span(whole, root, None, (began, ended), attributes=about, links=tuple(actions)),
            self._span(part, commit, root, (decided, ended)),
        ]

    def _span(
        self,
        span: ActionSpan,
        context: SpanContext,
        parent: SpanContext | None,
        times: tuple[datetime, datetime],
        *,
        attributes: Mapping[str, AttributeValue] | None = None,
        links: Sequence[SpanIds] = (),
    ) -> ReadableSpan:
        return ReadableSpan(
            span.name,
            context,
            parent,
            self._resource,
            attributes=self._bounded_attributes(attributes or {}),
            links=self._bounded_links(links) if links else (),
            kind=_KINDS[span.kind],
            status=_failed_status(span.error) if span.error is not None else _UNSET,
            start_time=_nanoseconds(times[0]),
            end_time=_nanoseconds(times[1]),
            instrumentation_scope=self._scope,
        )

    def _parent_context(self, context: TraceContext, state: TraceState | None) -> SpanContext | None:
        """Return the context of the client's span, if it sent one."""
        if context.parent_id is None:
            return None
        trace_id, span_id = (int.from_bytes(each, "big") for each in (context.trace_id, context.parent_id))
        return SpanContext(trace_id, span_id, True, TraceFlags(int(bool(context.sampled))), state)

    def _bounded_attributes(self, attributes: Mapping[str, AttributeValue]) -> Mapping[str, AttributeValue]:
        """Apply the limits. Attributes within them stay a plain dict: checking each again is half of a span's cost."""
        most, longest = self._limits.max_span_attributes, self._limits.max_span_attribute_length
        if longest is None and (most is None or len(attributes) <= most):
            return attributes
        return BoundedAttributes(most, attributes, max_value_len=longest)  # type: ignore[return-value]

    def _bounded_links(self, links: Sequence[SpanIds]) -> Sequence[Link]:
        made = [
            Link(SpanContext(int.from_bytes(trace_id, "big"), int.from_bytes(span_id, "big"), True, _SAMPLED))
            for trace_id, span_id in links
        ]
        most = self._limits.max_links
        return made if most is None or len(made) <= most else BoundedList.from_seq(most, made)


@lru_cache(maxsize=256)
def _failed_status(reason: str) -> Status:
    return Status(StatusCode.ERROR, reason)


@lru_cache(maxsize=256)
def _trace_state(header: str | None) -> TraceState | None:
    return TraceState.from_header([header]) if header else None


def _nanoseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000) * 1000
