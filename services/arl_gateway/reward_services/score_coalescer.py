"""Coalesced scoring: calls that arrive while an action is in flight become one action.

A row for each call would cost more than half of a score's time, forward pass excluded (docs/decisions/0027). Therefore
only a few actions of one project, task and service are unsettled at a time. Calls that arrive meanwhile wait here and
form the next action. A single call is submitted at once. While another action is scored, the next one waits briefly for
clients that ask again after an answer. Each action is durable before it is scored, and it names the caller of each
item. A call that fails does not affect the others.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar
from uuid import UUID

from arl_core.domain.states import ActionOutcome
from arl_gateway.actions.service import ActionService, AdmittedAction, RequestTrace
from arl_gateway.blocking.blocking_actions import RETRY_PAUSE_S, BlockingActions
from arl_gateway.http.auth import Caller
from arl_wire.actions.action import Action, SubmitActionRequest
from arl_wire.errors import QueueFull, Unavailable, ValidationFailed
from arl_wire.internal.admission import CoalescedCall
from arl_wire.scores import MAX_CHARACTERS, MAX_ITEMS, Score, ScoreItem

__all__ = ["ScoreCoalescer", "ScoreSlice", "ScoreSubmission", "split_items"]

EntryT = TypeVar("EntryT")

INFRA_RETRIES = 2
"""Retries of an action after an infra_error; scoring is always repeatable."""
MIN_TIMEOUT_S: float = SubmitActionRequest.model_fields["timeout_s"].default
"""Minimum timeout of an action in seconds. The timeout is longer if a call waits longer."""
LINGER_SHARE = 0.1
"""Linger time as a share of the last action's duration; used only while another action is in flight."""
MAX_LINGER_S = 0.05
"""Maximum linger time in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSubmission:
    """The items of one call, to be scored within `within_s`."""

    service: str
    items: Sequence[ScoreItem]
    task: str
    trajectory: str | None = None
    step: int | None = None
    priority: int = 0
    within_s: float = 55.0
    unbatched: bool = False
    """Submit at once and without other calls. Cores run several actions in parallel; a device runs one batch at a
    time.
    """


@dataclass(frozen=True, slots=True)
class ScoreSlice:
    """The entries of a call, in order: items from `first` on of an action."""

    action: UUID
    first: int
    entries: Sequence[Score]


@dataclass(slots=True, eq=False)
class _PendingCall:
    submission: ScoreSubmission
    caller: Caller
    trace: RequestTrace
    ends_at: float
    """Deadline on the monotonic clock."""
    result: "asyncio.Future[ScoreSlice]"
    group: "_ScoreGroup"
    batch: "_InFlightBatch | None" = None


@dataclass(slots=True, eq=False)
class _InFlightBatch:
    """An action and the calls that wait for it."""

    calls: list[_PendingCall]
    task: "asyncio.Task[None] | None" = None


@dataclass(slots=True, eq=False)
class _ScoreGroup:
    """Calls that can be coalesced: of one project, task, service and priority."""

    key: tuple[int, str, str, int]
    pending: deque[_PendingCall] = field(default_factory=deque)
    in_flight: int = 0
    last_duration_s: float = 0.0
    """Duration of the last action in seconds, from its first call to its answers."""
    linger_timer: asyncio.TimerHandle | None = None
    """Timer during which new calls wait for further calls."""

    @property
    def should_linger(self) -> bool:
        """Return True if waiting for more calls costs nothing, because another action keeps the device busy."""
        return bool(self.in_flight) and len(self.pending) < MAX_ITEMS and not self.pending[0].submission.unbatched


class ScoreCoalescer:
    """Groups of pending calls and their actions.

    `max_inflight` limits the unsettled actions of a group: one is scored, the next is queued, and a third gathers
    calls.
    """

    def __init__(
        self, actions: ActionService, *, max_inflight: int, max_waiting: int, retry_pause_s: float = RETRY_PAUSE_S
    ) -> None:
        self._actions, self._blocking = actions, BlockingActions(actions, retry_pause_s=retry_pause_s)
        self._max_inflight, self._max_waiting = max_inflight, max_waiting
        self._groups: dict[tuple[int, str, str, int], _ScoreGroup] = {}
        self.waiting = 0
        """Number of calls without an answer."""

    async def score(self, submission: ScoreSubmission, caller: Caller, trace: RequestTrace) -> ScoreSlice:
        """Score the items of a call. If all calls of an action are cancelled, the action is cancelled.

        Raises `Unavailable` on a timeout or infrastructure error, and the errors of admission.
        """
        if self.waiting >= self._max_waiting:
            raise Unavailable("too many requests wait for scores; try again", retry_after_s=1)
        call = self._enqueue(submission, caller, trace)
        self.waiting += 1
        try:
            async with asyncio.timeout(submission.within_s):
                return await call.result
        except TimeoutError:
            message = f"the items were not scored within {submission.within_s:g} s; try again"
            raise Unavailable(message, retry_after_s=1) from None
        finally:
            self.waiting -= 1
            self._release(call)

    async def drain(self) -> None:
        """Wait until every call has an answer."""
        await self._blocking.drain()

    def _enqueue(self, submission: ScoreSubmission, caller: Caller, trace: RequestTrace) -> _PendingCall:
        key = caller.project_id, submission.task, submission.service, submission.priority
        lane = self._groups.setdefault(key, _ScoreGroup(key))
        answer: asyncio.Future[ScoreSlice] = asyncio.get_running_loop().create_future()
        call = _PendingCall(submission, caller, trace, time.monotonic() + submission.within_s, answer, lane)
        lane.pending.append(call)
        self._dispatch(lane)
        return call

    def _release(self, call: _PendingCall) -> None:
        """Remove a call that was answered or cancelled. Cancel its action if no other call waits for it."""
        call.result.cancel()
        if call.batch is None:
            if call in call.group.pending:
                call.group.pending.remove(call)
            self._remove_if_empty(call.group)
        elif call.batch.task is not None and all(each.result.done() for each in call.batch.calls):
            call.batch.task.cancel()

    def _dispatch(self, group: _ScoreGroup, *, lingered: bool = False) -> None:
        while group.pending and (group.in_flight < self._max_inflight or group.pending[0].submission.unbatched):
            if group.should_linger and not lingered:
                self._start_linger(group)
                return
            self._stop_linger(group)
            alone = group.pending[0].submission.unbatched
            calls = (
                [group.pending.popleft()] if alone else _take_fitting(group.pending, lambda call: call.submission.items)
            )
            # A cancelled call may still be in the queue, because its task has not run yet.
            if calls := [call for call in calls if not call.result.done()]:
                self._start_batch(group, _InFlightBatch(calls))

    def _start_batch(self, group: _ScoreGroup, batch: _InFlightBatch) -> None:
        group.in_flight += 1
        for call in batch.calls:
            call.batch = batch
        batch.task = self._blocking.run_in_background(self._score_calls(batch.calls))
        # As a callback: a task that is cancelled before its first step never runs its own clean-up.
        batch.task.add_done_callback(partial(self._batch_finished, group, time.monotonic()))

    def _batch_finished(self, group: _ScoreGroup, started_at: float, _: "asyncio.Task[None]") -> None:
        group.in_flight -= 1
        group.last_duration_s = time.monotonic() - started_at
        self._dispatch(group)
        self._remove_if_empty(group)

    def _start_linger(self, group: _ScoreGroup) -> None:
        if group.linger_timer is None:
            wait_s = min(MAX_LINGER_S, LINGER_SHARE * group.last_duration_s)
            group.linger_timer = asyncio.get_running_loop().call_later(wait_s, self._linger_ended, group)

    def _stop_linger(self, group: _ScoreGroup) -> None:
        if group.linger_timer is not None:
            group.linger_timer.cancel()
            group.linger_timer = None

    def _linger_ended(self, group: _ScoreGroup) -> None:
        group.linger_timer = None
        self._dispatch(group, lingered=True)

    def _remove_if_empty(self, group: _ScoreGroup) -> None:
        if not group.in_flight and not group.pending and self._groups.get(group.key) is group:
            del self._groups[group.key]

    async def _score_calls(self, calls: Sequence[_PendingCall]) -> None:
        try:
            action = await self._blocking.wait_settled(self._admit_with_retry(calls), calls[0].caller)
        except ValidationFailed as error:
            if len(calls) == 1:
                _fail_calls(calls, error)
            else:
                # Submit each call separately and in parallel, so that an invalid call does not delay the others.
                await asyncio.gather(*(self._score_calls([call]) for call in calls if not call.result.done()))
        except Exception as error:  # noqa: BLE001 - passed to all calls of the action
            _fail_calls(calls, error)
        else:
            _deliver(action, calls)

    async def _admit_with_retry(self, calls: Sequence[_PendingCall]) -> AdmittedAction:
        """Admit an action, retrying while admission has no room. Refused callers would only send further requests.

        If the answer of admission is lost, the action is submitted again; the first copy may be scored unused.
        """
        asked_for = [_item_origin(call) for call in calls]
        while any(not call.result.done() for call in calls):
            try:
                return await self._actions.admit(
                    _build_action(calls), calls[0].caller, trace=calls[0].trace, item_origins=asked_for
                )
            except (QueueFull, Unavailable) as refused:
                await asyncio.sleep(refused.retry_after_s or self._blocking.retry_pause_s)
        raise Unavailable("all calls of this action have ended")


def split_items(items: Sequence[ScoreItem]) -> list[Sequence[ScoreItem]]:
    """Split the items into the fewest groups that fit in one action each, in order."""
    waiting = deque((item,) for item in items)
    found: list[Sequence[ScoreItem]] = []
    while waiting:
        found.append([item for (item,) in _take_fitting(waiting, lambda one: one)])
    return found


def _take_fitting(pending: deque[EntryT], items_of: Callable[[EntryT], Sequence[ScoreItem]]) -> list[EntryT]:
    """Remove and return entries from the left while one action can contain them; at least one."""
    taken: list[EntryT] = []
    items = characters = 0
    while pending:
        following = items_of(pending[0])
        items, characters = items + len(following), characters + sum(item.characters for item in following)
        if taken and (items > MAX_ITEMS or characters > MAX_CHARACTERS):
            break
        taken.append(pending.popleft())
    return taken


def _build_action(calls: Sequence[_PendingCall]) -> SubmitActionRequest:
    """Build the action of the calls. Its deadline is the latest time at which a call waits."""
    first = calls[0].submission
    trajectories, steps = {call.submission.trajectory for call in calls}, {call.submission.step for call in calls}
    return SubmitActionRequest(
        kind="score",
        task=first.task,
        trajectory=first.trajectory if len(trajectories) == 1 else None,
        step=first.step if len(steps) == 1 else None,
        service=first.service,
        items=[item for call in calls for item in call.submission.items],
        priority=first.priority,
        timeout_s=max(MIN_TIMEOUT_S, *(call.submission.within_s for call in calls)),
        deadline_s=max(1.0, max(call.ends_at for call in calls) - time.monotonic()),
        retries=INFRA_RETRIES,
    )


def _item_origin(call: _PendingCall) -> CoalescedCall:
    ask = call.submission
    return CoalescedCall(items=len(ask.items), trajectory=ask.trajectory, step=ask.step, traceparent=call.trace.parent)


def _deliver(action: Action, calls: Sequence[_PendingCall]) -> None:
    entries = action.result.scores if action.result is not None else None
    if entries is None or action.outcome not in (ActionOutcome.OK, ActionOutcome.USER_ERROR):
        # An infrastructure error is never a reward; the client retries after a 503.
        why = f"{action.outcome}, {action.reason or action.message or 'for no stated reason'}"
        _fail_calls(calls, Unavailable(f"action {action.id} was not scored: {why}; try again", retry_after_s=1))
        return
    first = 0
    for call in calls:
        following = first + len(call.submission.items)
        if not call.result.done():
            call.result.set_result(ScoreSlice(action.id, first, entries[first:following]))
        first = following


def _fail_calls(calls: Sequence[_PendingCall], error: Exception) -> None:
    for call in calls:
        if not call.result.done():
            call.result.set_exception(error)
