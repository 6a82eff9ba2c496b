"""Many concurrent waits that share one request."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

import pytest

from arl_core.domain.states import ActionOutcome, ActionState
from arl_tangram.operations import MAX_BATCH_ITEMS, WaitTimeout
from arl_tangram.transport.shared_wait import SharedWait
from arl_wire.actions.action import Action
from arl_wire.errors import NotFound
from support.builders import numbered


def settled(id: UUID) -> Action:
    now = datetime.now(UTC)
    known = {"task": "t", "kind": "exec", "state": ActionState.SETTLED, "outcome": ActionOutcome.OK}
    return Action.model_validate({"id": id, "created_at": now, "settled_at": now, **known})


async def test_each_waiter_gets_its_action_within_request_size_limit() -> None:
    asked: list[int] = []

    async def ask(ids: Sequence[UUID], within_s: float) -> Sequence[Action]:
        asked.append(len(ids))
        return [settled(id) for id in ids[::2]]

    wait = SharedWait(ask)
    ids = [numbered(number) for number in range(1, 2 * MAX_BATCH_ITEMS + 2)]
    assert [action.id for action in await asyncio.gather(*map(wait.wait_settled, ids))] == ids
    assert max(asked) == MAX_BATCH_ITEMS


async def test_long_waits_do_not_block_waits_for_other_actions() -> None:
    last = numbered(3 * MAX_BATCH_ITEMS)

    async def ask(ids: Sequence[UUID], within_s: float) -> Sequence[Action]:
        if last not in ids:
            raise WaitTimeout(ids)
        return [settled(last)]

    wait = SharedWait(ask, cycle_s=0)
    others = [asyncio.create_task(wait.wait_settled(numbered(number))) for number in range(1, 3 * MAX_BATCH_ITEMS)]
    assert (await wait.wait_settled(last)).id == last
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def test_error_reaches_only_current_waiters_and_later_waiters_retry() -> None:
    faults = [NotFound("no")]

    async def ask(ids: Sequence[UUID], within_s: float) -> Sequence[Action]:
        if faults:
            raise faults.pop()
        return [settled(id) for id in ids]

    wait = SharedWait(ask)
    with pytest.raises(NotFound):
        await wait.wait_settled(numbered(1))
    assert (await wait.wait_settled(numbered(2))).id == numbered(2)
