"""The SDK's operations, driven step by step without network or time."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from arl_core.domain.states import ActionOutcome, ActionState
from arl_tangram import batches, operations
from arl_tangram.operations import BatchRefused, Operation, RetryDelay, SdkRequest, SdkResponse, WaitTimeout
from arl_tangram.options import exec_action
from arl_tangram.resources.reward_services import RewardServiceMethods, ScoreOptions
from arl_tangram.timeouts import RESPONSE_GRACE_S, with_timeout
from arl_wire.actions.action import Action
from arl_wire.actions.batches import BatchItemResult, SubmitBatchResponse, WaitRequest, WaitResponse
from arl_wire.errors import NotFound, TangramError, TooLarge, Unavailable, ValidationFailed
from arl_wire.reward_services.service import ScoreRequest, ScoreResponse
from arl_wire.scores import Score, ScoreItem
from support.builders import numbered


def an_answer(number: int = 1, *, settled: bool = True) -> Action:
    now = datetime.now(UTC)
    return Action(
        id=numbered(number), task="t", kind="exec", created_at=now, settled_at=now if settled else None,
        state=ActionState.SETTLED if settled else ActionState.QUEUED, outcome=ActionOutcome.OK if settled else None,
    )  # fmt: skip


def drive(
    operation: Operation[Any], server: Callable[[SdkRequest], SdkResponse]
) -> tuple[Any, list[SdkRequest], float]:
    """Return the operation's value, its requests and the seconds paused."""
    calls: list[SdkRequest] = []
    paused, reply = 0.0, None
    while True:
        try:
            step = operation.send(reply)
        except StopIteration as end:
            return end.value, calls, paused
        if isinstance(step, RetryDelay):
            paused += step.seconds
            reply = None
        else:
            calls.append(step)
            reply = server(step)


def replies(*answers: SdkResponse) -> Callable[[SdkRequest], SdkResponse]:
    left = list(answers)
    return lambda call: left.pop(0)


ACTION = exec_action(task="t", argv=["true"])
SETTLED = SdkResponse(200, an_answer().model_dump_json().encode())


def test_submission_is_retried_with_one_idempotency_key() -> None:
    server = replies(SdkResponse(0, b"ConnectError"), SdkResponse(503, b"{}"), SdkResponse(502, b""), SETTLED)
    value, calls, _ = drive(operations.submit(ACTION, wait_s=0, retry_timeout_s=60), server)
    assert value.id == numbered(1)
    assert len({call.headers["idempotency-key"] for call in calls if call.headers}) == 1
    assert len(calls) == 4


def test_two_submissions_use_different_idempotency_keys() -> None:
    calls = [drive(operations.submit(ACTION, wait_s=0, retry_timeout_s=1), replies(SETTLED))[1][0] for _ in range(2)]
    assert calls[0].headers != calls[1].headers


def test_retry_timeout_raises_the_last_error() -> None:
    with pytest.raises(Unavailable, match="ConnectError"):
        drive(operations.get(numbered(1), wait_s=0, retry_timeout_s=5), lambda call: SdkResponse(0, b"ConnectError"))


def test_retry_after_of_response_is_respected() -> None:
    server = replies(SdkResponse(429, b"{}", retry_after_s=3.0), SETTLED)
    assert drive(operations.get(numbered(1), wait_s=0, retry_timeout_s=5), server)[2] >= 3.0


def test_validation_error_is_not_retried() -> None:
    body = ValidationFailed("task: is empty").to_problem().model_dump_json().encode()
    with pytest.raises(ValidationFailed, match="task"):
        drive(operations.submit(ACTION, wait_s=0, retry_timeout_s=60), replies(SdkResponse(422, body)))


def test_run_without_timeout_waits_until_action_settles() -> None:
    queued = SdkResponse(202, an_answer(settled=False).model_dump_json().encode())
    pending = SdkResponse(200, WaitResponse(settled=[], pending=[numbered(1)]).model_dump_json().encode())
    settled = SdkResponse(200, WaitResponse(settled=[an_answer()], pending=[]).model_dump_json().encode())
    value, calls, _ = drive(
        operations.run(ACTION, timeout_s=None, retry_timeout_s=1), replies(queued, pending, pending, settled)
    )
    assert value.outcome is ActionOutcome.OK
    assert [call.path for call in calls] == ["/v1/actions", *["/v1/actions:wait"] * 3]


def test_wait_timeout_names_pending_actions() -> None:
    pending = SdkResponse(200, WaitResponse(settled=[], pending=[numbered(1)]).model_dump_json().encode())
    with pytest.raises(WaitTimeout) as caught:
        drive(operations.wait([numbered(1)], timeout_s=40, retry_timeout_s=1), lambda call: pending)
    assert caught.value.pending == (numbered(1),)


def test_wait_for_unknown_id_raises_not_found() -> None:
    unknown = SdkResponse(200, WaitResponse(settled=[], pending=[], unknown=[numbered(9)]).model_dump_json().encode())
    with pytest.raises(NotFound, match=str(numbered(9))):
        drive(operations.wait([numbered(9)], timeout_s=None, retry_timeout_s=1), replies(unknown))


def test_wait_returns_requested_order_and_accepts_duplicate_ids() -> None:
    answer = WaitResponse(settled=[an_answer(2), an_answer(1)], pending=[])
    value, _, _ = drive(
        operations.wait([numbered(1), numbered(2), numbered(1)], timeout_s=None, retry_timeout_s=1),
        replies(SdkResponse(200, answer.model_dump_json().encode())),
    )
    assert [action.id for action in value] == [numbered(1), numbered(2), numbered(1)]


def test_wait_accepts_text_ids_and_rejects_invalid_ids() -> None:
    answer = SdkResponse(200, WaitResponse(settled=[an_answer(1)], pending=[]).model_dump_json().encode())
    ids = [str(numbered(1))]
    value, _, _ = drive(operations.wait(ids, timeout_s=None, retry_timeout_s=1), replies(answer))
    assert [action.id for action in value] == [numbered(1)]
    with pytest.raises(ValidationFailed, match="'zz' is not an action id"):
        drive(operations.wait(["zz"], timeout_s=None, retry_timeout_s=1), replies())


@pytest.mark.parametrize("timeout_s", [None, 5.0])
def test_wait_any_checks_every_part_of_many_ids(timeout_s: float | None) -> None:
    ids = [numbered(number) for number in range(2500)]
    asked: list[int] = []

    def server(call: SdkRequest) -> SdkResponse:
        assert isinstance(call.body, WaitRequest)
        asked.append(len(call.body.ids))
        settled = [an_answer(2499)] if ids[2499] in call.body.ids else []
        return SdkResponse(200, WaitResponse(settled=settled, pending=[]).model_dump_json().encode())

    value, _, _ = drive(operations.wait_any(ids, timeout_s=timeout_s, retry_timeout_s=1), server)
    assert ([action.id for action in value], asked) == ([ids[2499]], [1000, 1000, 500])


def test_wait_requests_unreturned_actions_again_at_once() -> None:
    ids = [numbered(number) for number in range(6)]

    def server(call: SdkRequest) -> SdkResponse:
        assert isinstance(call.body, WaitRequest)
        one, *others = call.body.ids
        answer = WaitResponse(settled=[an_answer(ids.index(one))], pending=others)
        return SdkResponse(200, answer.model_dump_json().encode())

    value, calls, _ = drive(operations.wait(ids, timeout_s=60, retry_timeout_s=1), server)
    assert ([action.id for action in value], len(calls)) == (ids, 6)


def test_wait_for_many_actions_respects_its_timeout() -> None:
    ids = [numbered(number) for number in range(1500)]
    pending = SdkResponse(200, WaitResponse(settled=[], pending=[]).model_dump_json().encode())
    waits: list[float] = []

    def server(call: SdkRequest) -> SdkResponse:
        assert isinstance(call.body, WaitRequest)
        waits.append(call.body.timeout_s)
        return pending

    with pytest.raises(WaitTimeout):
        drive(operations.wait_any(ids, timeout_s=2.5, retry_timeout_s=1), server)
    assert waits == [0, 0, 1, 1, 0.5]


@pytest.mark.parametrize("operation", [operations.run, operations.wait, operations.wait_any])
def test_unreachable_gateway_is_retried_no_longer_than_timeout(operation: Any) -> None:
    calls: list[SdkRequest] = []

    def away(call: SdkRequest) -> SdkResponse:
        calls.append(call)
        return SdkResponse(0, b"ConnectError", elapsed_s=0.4)

    submits = operation is operations.run
    with pytest.raises(Unavailable if submits else WaitTimeout):
        drive(
            with_timeout(operation(ACTION if submits else [numbered(1)], timeout_s=1.0, retry_timeout_s=120), 1.0), away
        )
    assert len(calls) <= 3


def test_partially_refused_batch_names_refused_actions() -> None:
    items = [BatchItemResult(id=numbered(1)), BatchItemResult(problem=ValidationFailed("argv: no").to_problem())]
    reply = SdkResponse(202, SubmitBatchResponse(items=items).model_dump_json().encode())
    with pytest.raises(BatchRefused) as caught:
        drive(batches.submit_many([ACTION, ACTION], retry_timeout_s=1), replies(reply))
    assert caught.value.accepted == {0: numbered(1)}
    assert isinstance(caught.value.refused[1], ValidationFailed)


def test_large_batch_is_split_into_parts() -> None:
    def accept(call: SdkRequest) -> SdkResponse:
        items = [BatchItemResult(id=UUID(int=n)) for n in range(len(call.body.actions))]  # type: ignore[union-attr]
        return SdkResponse(202, SubmitBatchResponse(items=items).model_dump_json().encode())

    value, calls, _ = drive(batches.submit_many([ACTION] * 2500, retry_timeout_s=1), accept)
    assert len(value) == 2500
    assert len(calls) == 3
    with_files = exec_action(task="t", argv=["true"], files={"a": b"x" * 60_000})
    value, calls, _ = drive(batches.submit_many([with_files] * 1000, retry_timeout_s=1), accept)
    assert len(value) == 1000
    assert all(len(call.body.model_dump_json()) < 64 << 20 for call in calls if call.body is not None)


def test_refused_later_part_reports_ids_of_accepted_parts() -> None:
    accepted = (
        SubmitBatchResponse(items=[BatchItemResult(id=UUID(int=n)) for n in range(1000)]).model_dump_json().encode()
    )
    too_large = SdkResponse(413, TooLarge("no").to_problem().model_dump_json().encode())
    with pytest.raises(BatchRefused) as caught:
        drive(batches.submit_many([ACTION] * 2500, retry_timeout_s=1), replies(SdkResponse(202, accepted), too_large))
    assert len(caught.value.accepted) == 1000
    assert caught.value.refused.keys() == set(range(1000, 2500))
    assert isinstance(caught.value.refused[1000], TooLarge)
    with pytest.raises(TooLarge):
        drive(batches.submit_many([ACTION], retry_timeout_s=1), replies(too_large))


class TestExecOptions:
    def test_trajectory_option_selects_trajectory_environment(self) -> None:
        assert exec_action(task="t", argv=["true"], trajectory="x").environment.scope == "trajectory"
        assert exec_action(task="t", argv=["true"]).environment.scope == "ephemeral"

    def test_file_contents_are_passed_unchanged(self) -> None:
        assert exec_action(task="t", source="1", files={"a": b"\xff", "b": "é"}).files == {
            "a": b"\xff",
            "b": "é".encode(),
        }

    @pytest.mark.parametrize(
        ("options", "field", "said"),
        [
            ({"timeout": 1}, "timeout", "timeout_s"),
            ({"memory": 64}, "memory", "memory_mib"),
            ({"argv": "echo hi"}, "argv", "list"),
            ({"fetch": "out.txt"}, "fetch", "list"),
            ({"files": {"a": 5}}, "files.a", "int"),
        ],
    )
    def test_misspelt_or_mistyped_option_is_rejected(self, options: dict[str, Any], field: str, said: str) -> None:
        with pytest.raises(ValidationFailed, match=said) as caught:
            exec_action(**{"task": "t", "argv": ["true"]} | options)
        assert [error.field for error in caught.value.errors] == [field]

    def test_none_option_is_treated_as_absent(self) -> None:
        options: dict[str, Any] = dict.fromkeys(("trajectory", "env", "cpu", "files"))
        assert exec_action(task="t", argv=["true"], **options) == exec_action(task="t", argv=["true"])

    def test_missing_required_option_is_named(self) -> None:
        with pytest.raises(ValidationFailed, match="task"):
            exec_action(argv=["true"])


@pytest.mark.parametrize(
    ("wait_timeout_s", "path", "within_s"),
    [(None, "/v1/scores", 600), (0.5, "/v1/scores", 0.5), (600, "/v1/scores", 600), (601, "/v1/actions", None)],
)
def test_score_wait_timeout_selects_route_and_limit(
    wait_timeout_s: float | None, path: str, within_s: float | None
) -> None:
    calls: list[SdkRequest] = []

    def refusing(call: SdkRequest) -> SdkResponse:
        calls.append(call)
        return SdkResponse(422, b"{}")

    client = OfRewards(refusing)
    with pytest.raises(TangramError):
        client.score("exact", [("a", "a")], wait_timeout_s=wait_timeout_s)
    [call] = calls
    assert (call.path, getattr(call.body, "within_s", None)) == (path, within_s)


def restarting(call: SdkRequest) -> SdkResponse:
    return SdkResponse(503, b"{}", elapsed_s=0.5)


def held(call: SdkRequest) -> SdkResponse:
    """Return the read timeout of a server that never answers."""
    return SdkResponse(0, b"ReadTimeout", elapsed_s=call.timeout_s)


@pytest.mark.parametrize("options", [{}, {"timeout_s": 5.0}])
@pytest.mark.parametrize("server", [restarting, held])
def test_all_score_retries_end_with_wait_timeout(
    options: ScoreOptions, server: Callable[[SdkRequest], SdkResponse]
) -> None:
    took: list[float] = []

    def timed(call: SdkRequest) -> SdkResponse:
        reply = server(call)
        took.append(reply.elapsed_s)
        return reply

    with pytest.raises(Unavailable, match="within 2 s"):
        OfRewards(timed, retry_timeout_s=120).score("exact", [("a", "a")], wait_timeout_s=2, **options)
    assert 0 < sum(took) <= 2 + RESPONSE_GRACE_S


def test_retried_score_request_uses_remaining_time() -> None:
    asked: list[float] = []

    def server(call: SdkRequest) -> SdkResponse:
        assert isinstance(call.body, ScoreRequest)
        asked.append(call.body.within_s)
        if len(asked) == 1:
            return SdkResponse(503, b"{}", retry_after_s=3.0, elapsed_s=4.0)
        answer = ScoreResponse(action=numbered(1), first=0, scores=[Score(score=1.0)])
        return SdkResponse(200, answer.model_dump_json().encode())

    assert OfRewards(server, retry_timeout_s=120).score("exact", [("a", "a")], wait_timeout_s=10) == [Score(score=1.0)]
    assert asked == [10.0, 3.0]


def test_score_action_longer_than_wait_raises_wait_timeout() -> None:
    waits: list[float] = []

    def server(call: SdkRequest) -> SdkResponse:
        if isinstance(call.body, WaitRequest):
            waits.append(call.body.timeout_s)
            pending = WaitResponse(settled=[], pending=[numbered(1)], unknown=[])
            return SdkResponse(200, pending.model_dump_json().encode(), elapsed_s=call.body.timeout_s)
        return SdkResponse(202, an_answer(settled=False).model_dump_json().encode(), elapsed_s=31.0)

    with pytest.raises(WaitTimeout):
        OfRewards(server).score("exact", [("a", "a")], wait_timeout_s=40, timeout_s=100)
    assert waits == [9.0]


def test_unanswered_wait_raises_timeout_with_pending_action_id() -> None:
    def server(call: SdkRequest) -> SdkResponse:
        if isinstance(call.body, WaitRequest):
            return SdkResponse(503, b"{}", retry_after_s=5.0, elapsed_s=8.0)
        return SdkResponse(202, an_answer(settled=False).model_dump_json().encode(), elapsed_s=31.0)

    with pytest.raises(WaitTimeout) as late:
        OfRewards(server, retry_timeout_s=120).score("exact", [("a", "a")], wait_timeout_s=40, timeout_s=100)
    assert late.value.pending == (numbered(1),)


@pytest.mark.parametrize("wait_timeout_s", [float("nan"), -1, 0])
def test_invalid_wait_timeout_is_rejected_before_any_request(wait_timeout_s: float) -> None:
    with pytest.raises(ValidationFailed) as refused:
        OfRewards(replies()).score("exact", [("a", "a")], wait_timeout_s=wait_timeout_s)
    assert [error.field for error in refused.value.errors or ()] == ["wait_timeout_s"]


@pytest.mark.parametrize(
    ("items", "field"),
    [
        ("def f", "items"),
        (b"def f", "items"),
        ({"text": "def f"}, "items"),
        (ScoreItem(text="def f"), "items"),
        ([], "items"),
        (["a", ("a", "b", "c")], "items.1"),
        ([("a",)], "items.0"),
    ],
)
def test_invalid_score_items_are_rejected_before_any_request(items: Any, field: str) -> None:
    with pytest.raises(ValidationFailed, match=field) as refused:
        OfRewards(replies()).score("quality", items)
    assert [error.field for error in refused.value.errors or ()] == [field]


class OfRewards(RewardServiceMethods):
    def __init__(self, server: Callable[[SdkRequest], SdkResponse], *, retry_timeout_s: float = 0.0) -> None:
        self._server, self._retry_timeout_s = server, retry_timeout_s

    def _run(self, operation: Operation[Any]) -> Any:
        return drive(operation, self._server)[0]
