"""Programs that blocking calls run, with fake actions instead of a running system."""

import asyncio
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import pytest

from arl_core.domain.states import ActionOutcome, ActionState
from arl_gateway.actions.service import ActionService, AdmittedAction, RequestTrace
from arl_gateway.blocking.code_runs import CodeRun, CodeRunner
from arl_gateway.http.auth import Caller
from arl_wire.actions.action import Action, SubmitActionRequest
from arl_wire.errors import GatewayTimeout, QueueFull
from support.builders import numbered

CALLER = Caller(1, 1, "p", frozenset())
WANTED = CodeRun(run=SubmitActionRequest(task="t", argv=["true"]), key=b"k", size=10)


class Standing:
    """A fake action service that admits actions if there is room and settles them on request."""

    def __init__(self) -> None:
        self.has_room = True
        self.asked = 0
        self.admitted: list[UUID] = []
        self.cancelled: list[UUID] = []
        self.settling: dict[UUID, asyncio.Future[ActionOutcome]] = {}

    async def admit(self, action: SubmitActionRequest, caller: Caller, *, trace: RequestTrace) -> AdmittedAction:
        self.asked += 1
        if not self.has_room:
            raise QueueFull("full", retry_after_s=0.001)
        id = numbered(len(self.admitted) + 1)
        self.admitted.append(id)
        self.settling[id] = asyncio.get_running_loop().create_future()
        return AdmittedAction(id, created=True)

    async def wait_outcome(self, admitted: AdmittedAction, caller: Caller, *, wait_s: float) -> Action:
        outcome, now = await self.settling[admitted.id], datetime.now(UTC)
        known: dict[str, Any] = {"task": "t", "kind": "exec", "state": ActionState.SETTLED, "outcome": outcome}
        return Action.model_validate({"id": admitted.id, "created_at": now, "settled_at": now, **known})

    async def end_trajectory(self, task: str, trajectory: str, caller: Caller) -> None:
        pass

    async def cancel(self, id: UUID, caller: Caller) -> None:
        self.cancelled.append(id)


@pytest.fixture
def standing() -> Standing:
    return Standing()


def runs_of(standing: Standing, *, grace_s: float = 30.0) -> CodeRunner:
    return CodeRunner(cast(ActionService, standing), retry_pause_s=0.001, resume_grace_s=grace_s)


async def tried(runs: CodeRunner, *, within_s: float = 0.01) -> None:
    with pytest.raises(GatewayTimeout):
        await runs.run(WANTED, CALLER, RequestTrace(), within_s=within_s)


async def test_retried_run_uses_one_action(standing: Standing) -> None:
    """A retry stops the grace period of the abandoned run."""
    runs = runs_of(standing, grace_s=0.1)
    for _ in range(5):
        await tried(runs, within_s=0.06)
    asyncio.get_running_loop().call_soon(standing.settling[numbered(1)].set_result, ActionOutcome.OK)
    ran = await runs.run(WANTED, CALLER, RequestTrace(), within_s=5)
    assert ran.run is not None
    assert (ran.run.id, len(standing.admitted), standing.cancelled) == (numbered(1), 1, [])
    await runs.drain()


async def test_abandoned_run_is_cancelled_after_grace_period(standing: Standing) -> None:
    runs = runs_of(standing, grace_s=0.01)
    await tried(runs)
    await asyncio.wait_for(_until(lambda: standing.cancelled == [numbered(1)]), 5)
    await runs.drain()


async def test_run_abandoned_before_admission_is_never_admitted(standing: Standing) -> None:
    runs, standing.has_room = runs_of(standing, grace_s=0.01), False
    gone = asyncio.create_task(runs.run(WANTED, CALLER, RequestTrace(), within_s=60))
    await asyncio.wait_for(_until(lambda: standing.asked > 2), 5)
    gone.cancel()
    await asyncio.wait((gone,))
    await tried(runs)
    await asyncio.wait_for(runs.drain(), 5)
    assert standing.admitted == []


async def test_run_with_infrastructure_error_starts_a_new_action(standing: Standing) -> None:
    runs = runs_of(standing)
    await tried(runs)
    standing.settling[numbered(1)].set_result(ActionOutcome.INFRA_ERROR)
    await asyncio.sleep(0)
    await tried(runs)
    standing.settling[numbered(2)].set_result(ActionOutcome.USER_ERROR)
    ran = await runs.run(WANTED, CALLER, RequestTrace(), within_s=5)
    assert ran.run is not None
    assert (ran.run.id, len(standing.admitted)) == (numbered(2), 2)
    await runs.drain()


async def test_stopping_gateway_answers_callers_and_cancels_running_actions(standing: Standing) -> None:
    runs = runs_of(standing)
    waiting = asyncio.create_task(runs.run(WANTED, CALLER, RequestTrace(), within_s=60))
    await asyncio.wait_for(_until(lambda: bool(standing.admitted)), 5)
    runs.stop()
    with pytest.raises(GatewayTimeout):
        await asyncio.wait_for(waiting, 5)
    await asyncio.wait_for(runs.drain(), 5)
    assert standing.cancelled == [numbered(1)]


async def test_run_whose_files_are_not_read_yet_is_resumed(standing: Standing) -> None:
    runs = runs_of(standing)
    collecting = CodeRun(run=WANTED.run, collect=WANTED.run, key=b"k", size=10)
    waiting = asyncio.create_task(runs.run(collecting, CALLER, RequestTrace(), within_s=0.5))
    await asyncio.wait_for(_until(lambda: len(standing.admitted) == 1), 5)
    standing.settling[numbered(1)].set_result(ActionOutcome.USER_ERROR)
    with pytest.raises(GatewayTimeout):
        await asyncio.wait_for(waiting, 5)
    again = asyncio.create_task(runs.run(collecting, CALLER, RequestTrace(), within_s=5))
    standing.settling[numbered(2)].set_result(ActionOutcome.OK)
    ran = await asyncio.wait_for(again, 5)
    assert ran.run is not None
    assert ran.collect is not None
    assert (ran.run.outcome, ran.collect.outcome) == (ActionOutcome.USER_ERROR, ActionOutcome.OK)
    assert len(standing.admitted) == 2, "nothing ran again"
    await asyncio.wait_for(runs.drain(), 5)


async def _until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0)
