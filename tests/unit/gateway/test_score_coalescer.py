"""Coalescing of score calls into actions; the actions settle when a test releases them."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from random import Random
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from arl_core.domain.states import ActionOutcome, ActionState
from arl_gateway.actions.service import ActionService, AdmittedAction, RequestTrace
from arl_gateway.http.auth import Caller
from arl_gateway.reward_services.score_coalescer import ScoreCoalescer, ScoreSlice, ScoreSubmission, split_items
from arl_store.tx import PoolBusy
from arl_wire.actions.action import Action, ActionResult, SubmitActionRequest
from arl_wire.errors import NotFound, QueueFull, Unavailable
from arl_wire.internal.admission import CoalescedCall
from arl_wire.scores import Score, ScoreItem

CALLER = Caller(1, 1, "default", frozenset({"actions:*"}))


class Held:
    """A fake action service: admits at once, and scores an action by text lengths once released."""

    def __init__(self) -> None:
        self.items: list[int] = []
        self.gate = asyncio.Semaphore(0)
        self.timeouts_s: list[float] = []
        self.cancelled = 0
        self._texts: dict[Any, list[str]] = {}
        self.looks: list[Exception | None] = []
        """Results of the first reads: None while the action runs, or an error."""

    async def admit(
        self, action: SubmitActionRequest, caller: Caller, *, trace: RequestTrace, item_origins: Sequence[CoalescedCall]
    ) -> Any:
        admitted = AdmittedAction(uuid4(), created=True)
        self._texts[admitted.id] = [item.text or "" for item in action.items or ()]
        self.items.append(len(self._texts[admitted.id]))
        self.timeouts_s.append(action.timeout_s)
        return admitted

    async def cancel(self, id: UUID, caller: Caller) -> None:
        self.cancelled += 1

    async def wait_outcome(self, admitted: AdmittedAction, caller: Caller, *, wait_s: float) -> Action:
        return await self.get(admitted.id, caller, wait_s=wait_s)

    async def get(self, id: UUID, caller: Caller, *, wait_s: float) -> Action:
        now = datetime.now(UTC)
        if self.looks:
            if (error := self.looks.pop(0)) is not None:
                raise error
            return Action(id=id, task="t", kind="score", state=ActionState.RUNNING, created_at=now)
        await self.gate.acquire()
        scores = [Score(score=float(len(text))) for text in self._texts[id]]
        result = ActionResult(grant_no=1, scores=scores)
        outcome = {"state": ActionState.SETTLED, "outcome": ActionOutcome.OK, "created_at": now, "settled_at": now}
        return Action(id=id, task="t", kind="score", result=result, **outcome)


def scores_of(held: Held) -> ScoreCoalescer:
    return ScoreCoalescer(cast(ActionService, held), max_inflight=2, max_waiting=100, retry_pause_s=0.001)


def asking(scores: ScoreCoalescer, text: str, *, alone: bool = False) -> "asyncio.Task[ScoreSlice]":
    ask = ScoreSubmission(service="minilm", items=[ScoreItem(text=text)], task="t", unbatched=alone)
    return asyncio.create_task(scores.score(ask, CALLER, RequestTrace()))


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0)


async def test_first_call_starts_at_once_and_later_calls_are_coalesced() -> None:
    held = Held()
    scores = scores_of(held)
    calls = [asking(scores, "a" * (1 + at)) for at in range(4)]
    await until(lambda: len(held.items) == 2)
    assert held.items == [1, 3]
    held.gate.release()
    held.gate.release()
    answers = await asyncio.gather(*calls)
    assert [answer.entries[0].score for answer in answers] == [1.0, 2.0, 3.0, 4.0]
    assert len({answer.action for answer in answers}) == 2


async def test_action_timeout_is_at_least_the_call_timeout() -> None:
    held = Held()
    scores = scores_of(held)
    for within_s in (55.0, 580.0):
        ask = ScoreSubmission(service="judge", items=[ScoreItem(text="a")], task="t", within_s=within_s, unbatched=True)
        held.gate.release()
        await scores.score(ask, CALLER, RequestTrace())
    assert held.timeouts_s == [300.0, 580.0]


def test_requested_logprobs_count_towards_split_size() -> None:
    """The 100 most likely logprobs of 2048 tokens take 5 MB per sequence."""
    sequences = [ScoreItem(token_ids=[1] * 2048, top_logprobs=100) for _ in range(9)]
    assert [len(part) for part in split_items(sequences)] == [4, 4, 1]
    texts = [ScoreItem(text="a" * 100_000, top_logprobs=100) for _ in range(3)]
    assert [len(part) for part in split_items(texts)] == [2, 1]


async def test_call_without_others_in_flight_does_not_linger() -> None:
    held = Held()
    scores = scores_of(held)
    first = asking(scores, "a")
    await until(lambda: held.items)
    held.gate.release()
    await first
    second = asking(scores, "b")
    await until(lambda: len(held.items) == 2)
    held.gate.release()
    await second


async def test_unbatched_call_does_not_linger() -> None:
    held = Held()
    scores = scores_of(held)
    calls = [asking(scores, "a", alone=True) for _ in range(4)]
    await until(lambda: held.items == [1, 1, 1, 1])
    for _ in calls:
        held.gate.release()
    await asyncio.gather(*calls)


async def test_disconnected_call_is_left_out_of_batch() -> None:
    held = Held()
    scores = scores_of(held)
    first, gone, stays = asking(scores, "a"), asking(scores, "b"), asking(scores, "c")
    await until(lambda: scores.waiting == 3)
    gone.cancel()
    await until(lambda: len(held.items) == 2)
    assert held.items == [1, 1]
    held.gate.release()
    held.gate.release()
    assert (await first).entries[0].score == (await stays).entries[0].score == 1.0
    assert scores.waiting == 0


async def test_coalescer_keeps_serving_after_random_disconnects() -> None:
    held, random = Held(), Random(1)
    scores = scores_of(held)
    async with asyncio.timeout(20):
        for _ in range(300):
            await _some_hang_up(scores, held, random)
        held.gate.release()
        assert (await asking(scores, "abc")).entries[0].score == 3.0


async def _some_hang_up(scores: ScoreCoalescer, held: Held, random: Random) -> None:
    calls = [asking(scores, "a") for _ in range(random.randint(1, 5))]
    for _ in range(random.randint(0, 8)):
        await asyncio.sleep(0)
    for call in calls:
        held.gate.release()
        # Some before the action of theirs has made its first step, as the turn comes that ends another one.
        if random.random() < 0.7:
            call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await scores.drain()
    held.gate = asyncio.Semaphore(0)


@pytest.mark.parametrize("look", [ConnectionRefusedError(), PoolBusy("all in use"), Unavailable("restarting"), None])
async def test_waiting_call_is_answered_after_database_outage(look: Exception | None) -> None:
    held = Held()
    held.looks = [look] * 3
    scores = scores_of(held)
    held.gate.release()
    async with asyncio.timeout(5):
        assert (await asking(scores, "ab")).entries[0].score == 2.0
    assert (held.items, held.looks, held.cancelled) == ([1], [], 0)


async def test_permanent_error_is_returned_at_once() -> None:
    held = Held()
    held.looks = [NotFound("there is no such action")]
    with pytest.raises(NotFound):
        await asking(scores_of(held), "ab")


async def test_call_is_retried_while_admission_is_unavailable() -> None:
    held = Held()
    admit, refusals = held.admit, [Unavailable("a service is not reachable"), QueueFull("full")]

    async def refusing(*args: Any, **named: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return await admit(*args, **named)

    held.admit = refusing  # type: ignore[method-assign]
    held.gate.release()
    async with asyncio.timeout(5):
        assert (await asking(scores_of(held), "ab")).entries[0].score == 2.0
