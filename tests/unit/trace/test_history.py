"""The spans of an action cover its whole life without gaps."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from arl_core.domain.states import ActionOutcome, ActionState
from arl_trace.history import GATEWAY_TRACESTATE, ActionHistory, AttemptRecord, NodeStage, context_of, spans_of

ID = UUID("01920000-0000-7000-8000-000000000000")
BEGIN = datetime(2026, 11, 22, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def an_attempt(grant_no: int, granted: float, started: float | None, ended: float | None, **more: Any) -> AttemptRecord:
    times = [at(moment) if moment is not None else None for moment in (started, ended)]
    return AttemptRecord(
        grant_no=grant_no, node="n", granted_at=at(granted), started_at=times[0], ended_at=times[1], **more
    )


def a_life(**changed: Any) -> ActionHistory:
    return ActionHistory(
        **({"id": ID, "task": "t", "kind": "exec", "state": ActionState.QUEUED, "created_at": BEGIN} | changed)
    )


def drawn(life: ActionHistory) -> list[tuple[str, float, float | None]]:
    return [
        (span.name, (span.start - BEGIN).total_seconds(), (span.end - BEGIN).total_seconds() if span.end else None)
        for span in spans_of(life)
    ][1:]


OK = {"state": ActionState.SETTLED, "outcome": ActionOutcome.OK, "settled_at": at(9)}
LOST = an_attempt(1, 1, 2, 4, reason="node_lost")
REFUSED = an_attempt(1, 1, None, 4, reason="refused")


@pytest.mark.parametrize(
    ("life", "expected"),
    [
        (a_life(), [("queue wait", 0, None)]),
        (
            a_life(state=ActionState.GRANTED, current_attempt=an_attempt(1, 1, None, None)),
            [("queue wait", 0, 1), ("grant", 1, None)],
        ),
        (
            a_life(state=ActionState.RUNNING, current_attempt=an_attempt(1, 1, 2, None)),
            [("queue wait", 0, 1), ("grant", 1, 2), ("process action", 2, None)],
        ),
        (
            a_life(**OK, current_attempt=an_attempt(1, 1, 2, 9), run_us=5_000_000),
            [("queue wait", 0, 1), ("grant", 1, 2), ("process action", 2, 7), ("settle", 7, 9)],
        ),
        (
            a_life(state=ActionState.SETTLED, outcome=ActionOutcome.CANCELLED, settled_at=at(3)),
            [("queue wait", 0, 3), ("settle", 3, 3)],
        ),
        (
            a_life(**OK, earlier_attempts=(LOST,), current_attempt=an_attempt(2, 5, 6, 9), run_us=1_000_000),
            [
                *(("queue wait", 0, 1), ("grant", 1, 2), ("process action", 2, 4)),
                *(("queue wait", 4, 5), ("grant", 5, 6), ("process action", 6, 7), ("settle", 7, 9)),
            ],
        ),
        (a_life(earlier_attempts=(REFUSED,)), [("queue wait", 0, 1), ("grant", 1, 4), ("queue wait", 4, None)]),
        (
            a_life(
                **OK | {"outcome": ActionOutcome.INFRA_ERROR, "reason": "node_lost"},
                current_attempt=an_attempt(1, 1, 2, 9),
            ),
            [("queue wait", 0, 1), ("grant", 1, 2), ("process action", 2, 9), ("settle", 9, 9)],
        ),
    ],
    ids=["waits", "granted", "runs", "ok", "cancelled", "retried", "refused", "lost without retry"],
)
def test_spans_cover_action_life_without_gaps(
    life: ActionHistory, expected: list[tuple[str, float, float | None]]
) -> None:
    assert drawn(life) == expected


def test_run_span_ends_at_settlement_at_the_latest() -> None:
    life = a_life(**OK, current_attempt=an_attempt(1, 1, 2, 9), run_us=60_000_000)
    assert drawn(life)[-2:] == [("process action", 2, 9), ("settle", 9, 9)]


def a_score(**changed: Any) -> ActionHistory:
    stages = (
        NodeStage("device wait", 0, 2_000_000),
        NodeStage("batch", 2_000_000, 3_000_000, restore_us=1_000_000, attributes=(("tangram.device", 0),)),
        NodeStage("batch", 5_000_000, 1_000_000, error="no_room"),
    )
    known = OK | {"kind": "score", "run_us": 4_000_000, "node_us": 6_000_000, "stages": stages}
    return a_life(**known | {"current_attempt": an_attempt(1, 0, 1, 9)} | changed)


def test_node_stages_of_score_are_children_of_its_attempt() -> None:
    assert drawn(a_score())[2:] == [
        ("process action", 1, 7),
        ("device wait", 1, 3),
        ("batch", 3, 6),
        ("restore weights", 3, 4),
        ("batch", 6, 7),
        ("settle", 7, 9),
    ]
    *_, process, wait, batch, restore, failed, _ = spans_of(a_score())
    assert [each.parent_id for each in (wait, batch, restore, failed)] == [
        *(process.span_id, process.span_id),
        *(batch.span_id, process.span_id),
    ]
    assert (batch.unique_attributes[-1], failed.error) == (("tangram.device", 0), "no_room")


def test_batch_span_ends_no_later_than_its_action() -> None:
    assert drawn(a_score(settled_at=at(4), current_attempt=an_attempt(1, 0, 1, 4)))[4:] == [
        *(("batch", 3, 4), ("restore weights", 3, 4)),
        *(("batch", 4, 4), ("settle", 4, 4)),
    ]


def test_span_ids_are_unique_and_deterministic() -> None:
    life = a_life(**OK, earlier_attempts=(LOST,), current_attempt=an_attempt(2, 5, 6, 9))
    ids = [span.span_id for span in spans_of(life)]
    assert len(set(ids)) == len(ids) == 8
    assert ids == [span.span_id for span in spans_of(life)]


def test_only_the_lost_attempt_has_an_error() -> None:
    life = a_life(**OK, earlier_attempts=(LOST,), current_attempt=an_attempt(2, 5, 6, 9))
    assert [(span.name, span.attempt, span.error) for span in spans_of(life) if span.error] == [
        ("process action", 1, "node_lost")
    ]
    assert life.has_failed


@pytest.mark.parametrize(
    ("traceparent", "tracestate", "expected"),
    [
        (None, None, (ID.hex, None, None)),
        (f"00-{'a' * 32}-{'b' * 16}-01", None, ("a" * 32, "b" * 16, True)),
        (f"00-{'a' * 32}-{'b' * 16}-03", "vendor=1", ("a" * 32, "b" * 16, True)),
        (f"00-{'a' * 32}-{'b' * 16}-00", None, ("a" * 32, "b" * 16, False)),
        (f"00-{'a' * 32}-{'b' * 16}-01", GATEWAY_TRACESTATE, ("a" * 32, None, None)),
        (f"cc-{'a' * 32}-{'b' * 16}-01-more", None, ("a" * 32, "b" * 16, True)),
    ],
)
def test_action_span_is_child_of_client_span_if_given(
    traceparent: str | None, tracestate: str | None, expected: tuple[str, str | None, bool | None]
) -> None:
    context = context_of(ID, traceparent, tracestate)
    parent = context.parent_id.hex() if context.parent_id is not None else None
    assert (context.trace_id.hex(), parent, context.sampled) == expected
