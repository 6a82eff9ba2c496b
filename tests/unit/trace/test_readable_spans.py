"""ReadableSpans that are built from rows: ids, parents, times, limits and sampling decisions."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    DEFAULT_OFF,
    DEFAULT_ON,
    Decision,
    ParentBasedTraceIdRatio,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import Link, SpanKind, StatusCode, TraceState
from opentelemetry.util.types import Attributes

from arl_core.domain.states import ActionOutcome, ActionState
from arl_trace.history import ActionHistory, AttemptRecord, TraceContext, spans_of
from arl_trace.readable_spans import SpanBuilder

ID = UUID("01920000-0000-7000-8000-000000000000")
BEGIN = datetime(2026, 11, 22, 0, 0, 0, 123_457, tzinfo=UTC)
TRACE, PARENT = "a" * 32, "b" * 16
ROUND = (b"r" * 16, b"s" * 8)


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def a_life(**changed: Any) -> ActionHistory:
    own = AttemptRecord(grant_no=1, node="n", granted_at=at(1), started_at=at(2), ended_at=at(9))
    known: dict[str, Any] = {"id": ID, "task": "t", "kind": "exec", "state": ActionState.SETTLED, "created_at": BEGIN}
    settled = {"outcome": ActionOutcome.OK, "settled_at": at(9), "run_us": 5_000_000, "current_attempt": own}
    return ActionHistory(**(known | settled | {"traceparent": f"00-{TRACE}-{PARENT}-01"} | changed))


def a_builder(sampler: Sampler = DEFAULT_ON, **limits: int) -> SpanBuilder:
    resource = Resource({"service.name": "test"})
    return SpanBuilder(sampler=sampler, resource=resource, limits=SpanLimits(**limits), version="1")


def built(life: ActionHistory, builder: SpanBuilder | None = None, **more: Any) -> Sequence[ReadableSpan]:
    builder = builder or a_builder()
    sampling = builder.sample(life.context, name="create action", tracestate=life.tracestate)
    known: dict[str, Any] = {"rounds": {}, "straggler_limits_s": {}}
    return builder.action_spans(life, life.context, sampling, **(known | more))


def context_of(span: ReadableSpan) -> Any:
    assert span.context is not None
    return span.context


def test_spans_have_ids_and_times_of_the_rows() -> None:
    life = a_life()
    spans = built(life)
    assert [context_of(span).span_id.to_bytes(8, "big") for span in spans] == [each.span_id for each in spans_of(life)]
    assert {context_of(span).trace_id for span in spans} == {int(TRACE, 16)}
    assert (spans[0].start_time, spans[0].end_time) == (1795305600_123457000, 1795305609_123457000)
    assert [span.kind for span in spans] == [
        *(SpanKind.PRODUCER, SpanKind.INTERNAL, SpanKind.INTERNAL, SpanKind.CONSUMER, SpanKind.INTERNAL)
    ]


def test_exit_code_belongs_to_the_attempt_that_settled_the_action() -> None:
    lost = AttemptRecord(grant_no=1, node="n", granted_at=at(1), started_at=at(2), ended_at=at(3), reason="node_lost")
    last = AttemptRecord(grant_no=2, node="n", granted_at=at(4), started_at=at(5), ended_at=at(9))
    spans = built(a_life(exit_code=4, earlier_attempts=(lost,), current_attempt=last))
    codes = [(span.attributes or {}).get("process.exit.code") for span in spans if span.name == "process action"]
    assert codes == [None, 4]


def test_root_span_has_client_parent_and_others_as_children() -> None:
    root, *others = built(a_life(tracestate="vendor=1"))
    assert root.parent is not None
    assert (root.parent.span_id, root.parent.is_remote) == (int(PARENT, 16), True)
    assert all(span.parent == root.context for span in others)
    assert all(context_of(span).trace_state == TraceState([("vendor", "1")]) for span in (root, *others))
    assert all(context_of(span).trace_flags.sampled for span in (root, *others))


def test_root_span_without_client_span_has_no_parent() -> None:
    assert built(a_life(traceparent=None))[0].parent is None


def test_failed_action_has_an_error_status() -> None:
    root = built(a_life(outcome=ActionOutcome.USER_TIMEOUT))[0]
    assert (root.status.status_code, root.status.description) == (StatusCode.ERROR, "user_timeout")


def test_grant_links_to_its_round_and_straggler_names_its_limit() -> None:
    spans = {span.name: span for span in built(a_life(), rounds={1: ROUND}, straggler_limits_s={1: 1.5})}
    [link] = spans["grant"].links
    assert (link.context.trace_id, link.context.span_id) == tuple(int.from_bytes(each, "big") for each in ROUND)
    attributes = spans["process action"].attributes
    assert attributes is not None
    assert attributes["tangram.straggler.limit_ms"] == 1500


def test_limits_shorten_values_and_drop_attributes_and_links() -> None:
    builder = a_builder(max_span_attributes=2, max_span_attribute_length=3, max_links=1)
    root = built(a_life(), builder)[0]
    assert root.attributes is not None
    assert len(root.attributes) == 2
    assert root.dropped_attributes > 0
    assert all(len(value) <= 3 for value in root.attributes.values() if isinstance(value, str))
    times = (at(0), at(1), at(2))
    [round_span, commit] = builder.round_spans(ROUND, b"c" * 8, times, granted=2, actions=[ROUND, ROUND])
    assert (len(round_span.links), round_span.dropped_links) == (1, 1)
    assert commit.parent == round_span.context


@pytest.mark.parametrize(
    ("sampler", "of_root", "of_sampled", "of_unsampled"),
    [
        (ALWAYS_ON, True, True, True),
        (ALWAYS_OFF, False, False, False),
        (DEFAULT_ON, True, True, False),
        (DEFAULT_OFF, False, True, False),
        (ParentBasedTraceIdRatio(0.0), False, True, False),
    ],
)
def test_sampler_receives_the_clients_decision(
    sampler: Sampler, of_root: bool, of_sampled: bool, of_unsampled: bool
) -> None:
    builder, trace_id, parent = a_builder(sampler), bytes.fromhex(TRACE), bytes.fromhex(PARENT)
    contexts = [
        TraceContext(trace_id, None, None),
        TraceContext(trace_id, parent, True),
        TraceContext(trace_id, parent, False),
    ]
    assert [builder.is_sampled(context, name="x") for context in contexts] == [of_root, of_sampled, of_unsampled]


def test_ratio_sampler_takes_its_share_by_trace_id() -> None:
    builder = a_builder(TraceIdRatioBased(0.25))
    contexts = [TraceContext(n.to_bytes(8, "big") * 2, None, None) for n in range(0, 1 << 64, 1 << 52)]
    assert sum(builder.is_sampled(each, name="x") for each in contexts) == len(contexts) / 4


class MarkingSampler(Sampler):
    """A sampler that adds an attribute and a tracestate, as a vendor's may."""

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        return SamplingResult(Decision.RECORD_AND_SAMPLE, {"rate": 10}, TraceState([("vendor", "2")]))

    def get_description(self) -> str:
        return "marks"


def test_sampler_attributes_and_tracestate_are_exported() -> None:
    root, *others = built(a_life(tracestate="vendor=1"), a_builder(MarkingSampler()))
    assert root.attributes is not None
    assert root.attributes["rate"] == 10
    assert all("rate" not in (span.attributes or {}) for span in others)
    assert context_of(root).trace_state.get("vendor") == "2"
