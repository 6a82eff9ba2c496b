"""Scores for callers who wait for them: what is asked for meanwhile becomes one action.

A row of its own for each call is more than half of what a score costs besides its forward (README, Decisions). So at
most a few actions of one project, task and service are unsettled at a time, and calls that come meanwhile wait here
and go together as the next one. A lone call goes at once; while another action is scored, the next one is given a
moment for those who ask again as soon as they have an answer. Nothing is scored before its action is durable, the
action says whose each item is, and a call that fails by itself takes no other with it.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar
from uuid import UUID

from arl_core.states import Outcome
from arl_gateway.auth import Caller
from arl_gateway.held import PAUSE_S, Held
from arl_gateway.service import Actions, Admitted, Trace
from arl_wire.actions import Action, SubmitAction
from arl_wire.errors import QueueFull, Unavailable, ValidationFailed
from arl_wire.internal import AskedFor
from arl_wire.scores import MAX_CHARACTERS, MAX_ITEMS, Score, ScoreItem

__all__ = ["Ask", "Scored", "Scores", "parts"]

Each = TypeVar("Each")

RETRIES = 2
"""Of an action after an infra_error: a score may always be computed again."""
TIMEOUT_S: float = SubmitAction.model_fields["timeout_s"].default
"""At least; an action may take as long as somebody waits for it."""
GATHER_SHARE = 0.1
"""Of the time that the last action took: so long the next one waits for company while another is on its way."""
GATHER_S = 0.05
"""At most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What one call wants scored, within `within_s`."""

    service: str
    items: Sequence[ScoreItem]
    task: str
    trajectory: str | None = None
    step: int | None = None
    priority: int = 0
    within_s: float = 55.0
    alone: bool = False
    """At once and by itself: cores work beside each other, and a device takes a batch at a time."""


@dataclass(frozen=True, slots=True)
class Scored:
    """The entries of a call, in order: items `first` and following of an action."""

    action: UUID
    first: int
    entries: Sequence[Score]


@dataclass(slots=True, eq=False)
class _Call:
    ask: Ask
    caller: Caller
    trace: Trace
    ends_at: float
    """By the monotonic clock."""
    answer: "asyncio.Future[Scored]"
    lane: "_Lane"
    flight: "_Flight | None" = None


@dataclass(slots=True, eq=False)
class _Flight:
    """One action, and who still waits for it."""

    calls: list[_Call]
    task: "asyncio.Task[None] | None" = None


@dataclass(slots=True, eq=False)
class _Lane:
    """What can go together: of one project, task, service and priority."""

    key: tuple[int, str, str, int]
    waiting: deque[_Call] = field(default_factory=deque)
    flights: int = 0
    took_s: float = 0.0
    """The last action, from its first call to its answers."""
    gathering: asyncio.TimerHandle | None = None
    """Until it fires, whatever comes waits for company."""

    @property
    def lacks_company(self) -> bool:
        """Nothing is lost by waiting for more: another action keeps the device busy meanwhile."""
        return bool(self.flights) and len(self.waiting) < MAX_ITEMS and not self.waiting[0].ask.alone


class Scores:
    """`flights`: unsettled actions of one lane; one is scored while the next one waits, and a third gathers."""

    def __init__(self, actions: Actions, *, flights: int, max_waiting: int, pause_s: float = PAUSE_S) -> None:
        self._actions, self._held = actions, Held(actions, pause_s=pause_s)
        self._flights, self._max_waiting = flights, max_waiting
        self._lanes: dict[tuple[int, str, str, int], _Lane] = {}
        self.waiting = 0
        """Calls that have no answer yet."""

    async def score(self, ask: Ask, caller: Caller, trace: Trace) -> Scored:
        """Raises `Unavailable` where nothing came of it in time or by our fault, and what admission refuses with.

        Whoever is cancelled waits no more; an action for which nobody waits is cancelled.
        """
        if self.waiting >= self._max_waiting:
            raise Unavailable("too many calls wait for scores already; try again", retry_after_s=1)
        call = self._entered(ask, caller, trace)
        self.waiting += 1
        try:
            async with asyncio.timeout(ask.within_s):
                return await call.answer
        except TimeoutError:
            message = f"not scored within {ask.within_s:g} s; try again"
            raise Unavailable(message, retry_after_s=1) from None
        finally:
            self.waiting -= 1
            self._leave(call)

    async def drain(self) -> None:
        """Until every call is answered."""
        await self._held.drain()

    def _entered(self, ask: Ask, caller: Caller, trace: Trace) -> _Call:
        key = caller.project_id, ask.task, ask.service, ask.priority
        lane = self._lanes.setdefault(key, _Lane(key))
        answer: asyncio.Future[Scored] = asyncio.get_running_loop().create_future()
        call = _Call(ask, caller, trace, time.monotonic() + ask.within_s, answer, lane)
        lane.waiting.append(call)
        self._go_on(lane)
        return call

    def _leave(self, call: _Call) -> None:
        """Answered, or gone: what nobody waits for is not scored."""
        call.answer.cancel()
        if call.flight is None:
            if call in call.lane.waiting:
                call.lane.waiting.remove(call)
            self._forget(call.lane)
        elif call.flight.task is not None and all(each.answer.done() for each in call.flight.calls):
            call.flight.task.cancel()

    def _go_on(self, lane: _Lane, *, gathered: bool = False) -> None:
        while lane.waiting and (lane.flights < self._flights or lane.waiting[0].ask.alone):
            if lane.lacks_company and not gathered:
                self._gather(lane)
                return
            self._stop_gathering(lane)
            alone = lane.waiting[0].ask.alone
            calls = [lane.waiting.popleft()] if alone else _together(lane.waiting, lambda call: call.ask.items)
            # Whoever is cancelled may not have had his turn to leave yet.
            if calls := [call for call in calls if not call.answer.done()]:
                self._begin(lane, _Flight(calls))

    def _begin(self, lane: _Lane, flight: _Flight) -> None:
        lane.flights += 1
        for call in flight.calls:
            call.flight = flight
        flight.task = self._held.in_background(self._answer(flight.calls))
        # Not in the task itself: one that is cancelled before its first step never runs.
        flight.task.add_done_callback(partial(self._landed, lane, time.monotonic()))

    def _landed(self, lane: _Lane, begun: float, _: "asyncio.Task[None]") -> None:
        lane.flights -= 1
        lane.took_s = time.monotonic() - begun
        self._go_on(lane)
        self._forget(lane)

    def _gather(self, lane: _Lane) -> None:
        if lane.gathering is None:
            wait_s = min(GATHER_S, GATHER_SHARE * lane.took_s)
            lane.gathering = asyncio.get_running_loop().call_later(wait_s, self._gathered, lane)

    def _stop_gathering(self, lane: _Lane) -> None:
        if lane.gathering is not None:
            lane.gathering.cancel()
            lane.gathering = None

    def _gathered(self, lane: _Lane) -> None:
        lane.gathering = None
        self._go_on(lane, gathered=True)

    def _forget(self, lane: _Lane) -> None:
        if not lane.flights and not lane.waiting and self._lanes.get(lane.key) is lane:
            del self._lanes[lane.key]

    async def _answer(self, calls: Sequence[_Call]) -> None:
        try:
            action = await self._held.settled(self._admitted(calls), calls[0].caller)
        except ValidationFailed as error:
            if len(calls) == 1:
                _fail(calls, error)
            else:
                # Beside each other: what one client gets wrong must not hold up the others.
                await asyncio.gather(*(self._answer([call]) for call in calls if not call.answer.done()))
        except Exception as error:  # noqa: BLE001 - it is handed to everyone whose items these are
            _fail(calls, error)
        else:
            _hand_out(action, calls)

    async def _admitted(self, calls: Sequence[_Call]) -> Admitted:
        """Held back while there is no way in: for whoever waits here, a refusal would only be more requests.

        Where it was not heard whether it is in, it is asked for again, and may be scored for nobody until its deadline.
        """
        asked_for = [_asked_for(call) for call in calls]
        while any(not call.answer.done() for call in calls):
            try:
                return await self._actions.admit(
                    _action(calls), calls[0].caller, trace=calls[0].trace, asked_for=asked_for
                )
            except (QueueFull, Unavailable) as refused:
                await asyncio.sleep(refused.retry_after_s or self._held.pause_s)
        raise Unavailable("nobody waits for it any more")


def parts(items: Sequence[ScoreItem]) -> list[Sequence[ScoreItem]]:
    """Each as many of the next items as one action can hold."""
    waiting = deque((item,) for item in items)
    found: list[Sequence[ScoreItem]] = []
    while waiting:
        found.append([item for (item,) in _together(waiting, lambda one: one)])
    return found


def _together(waiting: deque[Each], items_of: Callable[[Each], Sequence[ScoreItem]]) -> list[Each]:
    """Taken from the left while one action can hold them, and one in any case."""
    taken: list[Each] = []
    items = characters = 0
    while waiting:
        following = items_of(waiting[0])
        items, characters = items + len(following), characters + sum(item.characters for item in following)
        if taken and (items > MAX_ITEMS or characters > MAX_CHARACTERS):
            break
        taken.append(waiting.popleft())
    return taken


def _action(calls: Sequence[_Call]) -> SubmitAction:
    """Of no use once nobody waits for it any more."""
    first = calls[0].ask
    trajectories, steps = {call.ask.trajectory for call in calls}, {call.ask.step for call in calls}
    return SubmitAction(
        kind="score",
        task=first.task,
        trajectory=first.trajectory if len(trajectories) == 1 else None,
        step=first.step if len(steps) == 1 else None,
        service=first.service,
        items=[item for call in calls for item in call.ask.items],
        priority=first.priority,
        timeout_s=max(TIMEOUT_S, *(call.ask.within_s for call in calls)),
        deadline_s=max(1.0, max(call.ends_at for call in calls) - time.monotonic()),
        retries=RETRIES,
    )


def _asked_for(call: _Call) -> AskedFor:
    ask = call.ask
    return AskedFor(items=len(ask.items), trajectory=ask.trajectory, step=ask.step, traceparent=call.trace.parent)


def _hand_out(action: Action, calls: Sequence[_Call]) -> None:
    entries = action.result.scores if action.result is not None else None
    if entries is None or action.outcome not in (Outcome.OK, Outcome.USER_ERROR):
        # Our trouble is nobody's reward: a client that understands 503 comes back.
        why = f"{action.outcome}, {action.reason or action.message or 'for no stated reason'}"
        _fail(calls, Unavailable(f"action {action.id} was not scored: {why}; try again", retry_after_s=1))
        return
    first = 0
    for call in calls:
        following = first + len(call.ask.items)
        if not call.answer.done():
            call.answer.set_result(Scored(action.id, first, entries[first:following]))
        first = following


def _fail(calls: Sequence[_Call], error: Exception) -> None:
    for call in calls:
        if not call.answer.done():
            call.answer.set_exception(error)
