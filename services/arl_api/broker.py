"""Sends calls, again where that does no harm, and says how each ended."""

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from arl_api.call import Call, Report
from arl_api.lane import Lane
from arl_api.metrics import ApiMetrics
from arl_api.sender import Heard, Sender
from arl_api.settings import EndpointSettings
from arl_api.verdicts import Verdict, may_send_again, pause_s
from arl_core.fence import Fence

__all__ = ["Broker"]


class Broker:
    def __init__(
        self,
        endpoints: Mapping[str, EndpointSettings],
        metrics: ApiMetrics,
        *,
        report: Callable[[Report], None],
        may_send: Callable[[], bool],
    ) -> None:
        """`may_send`: whether the lease counts under which calls are here."""
        self.lanes = {name: Lane(each) for name, each in endpoints.items()}
        self._senders = {name: Sender(each) for name, each in endpoints.items()}
        self._metrics = metrics
        self._report, self._may_send = report, may_send
        self._tasks: dict[Fence, asyncio.Task[Heard]] = {}
        self._is_ending = False

    def add(self, call: Call) -> None:
        """It is reported, however it ends, unless this process does first."""
        if not self._is_ending:
            task = asyncio.create_task(self._heard_in_time(call), name=f"call of {call.endpoint}")
            self._tasks[call.fence] = task
            # Not in the task itself: one that is cancelled before its first step does nothing.
            task.add_done_callback(partial(self._over, call))

    def cancel(self, fences: Iterable[Fence]) -> None:
        """Their connections are closed, and each is reported."""
        for fence in fences:
            if (task := self._tasks.get(fence)) is not None:
                task.cancel()

    async def stop(self, grace_s: float) -> None:
        """What is under way has so long to end. The rest is broken off, and left to whoever finds its rows."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=grace_s)
        self._is_ending = True
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for sender in self._senders.values():
            await sender.close()

    def _over(self, call: Call, task: "asyncio.Task[Heard]") -> None:
        del self._tasks[call.fence]
        if task.cancelled():
            if not self._is_ending:
                self._report(_report(call, "cancelled"))
        elif (error := task.exception()) is not None:
            # A call that nobody reports would run for ever.
            message = f"the broker failed: {type(error).__name__}"
            self._report(_report(call, "infra_error", reason="broker_failed", message=message))
        else:
            self._report(_said(call, task.result()))

    async def _heard_in_time(self, call: Call) -> Heard:
        """Its time begins with its first request. Before that it waits for its turn, and as long at most."""
        last: Heard | None = None
        try:
            async with asyncio.timeout(call.timeout_s) as limit:
                while True:
                    last = await self._try(call, limit)
                    pause = self._pause_before_next(call, last, limit)
                    if pause is None:
                        return last
                    await asyncio.sleep(pause)
        except TimeoutError:
            late = _late(call, last)
            if call.begun is not None:
                self.lanes[call.endpoint].learn(late.verdict, late.said, sent=call.begun, asked_for_s=None)
            return late

    def _pause_before_next(self, call: Call, heard: Heard, limit: asyncio.Timeout) -> float | None:
        """None where there is no next request: it is not of use, or not in its time."""
        settings = self.lanes[call.endpoint].settings
        idempotent = call.idempotent or settings.idempotent
        if call.tries >= settings.tries or not may_send_again(heard.verdict, call.method, idempotent=idempotent):
            return None
        pause = pause_s(max(1, call.tries), asked_for_s=heard.asked_for_s, drawn=random.random())  # noqa: S311 - no secret
        ends_at = limit.when()
        return pause if ends_at is None or asyncio.get_running_loop().time() + pause < ends_at else None

    async def _try(self, call: Call, limit: asyncio.Timeout) -> Heard:
        lane = self.lanes[call.endpoint]
        async with lane.turn(again=call.begun is not None):
            if not self._may_send():
                return Heard(verdict=Verdict.UNREACHED, said="this broker has lost its lease, and sends nothing")
            sent = time.monotonic()
            if call.begun is None:
                call.begun = sent
                call.timeline.wait_ended(sent)
                limit.reschedule(asyncio.get_running_loop().time() + call.timeout_s)
            call.tries, lane.requests = call.tries + 1, lane.requests + 1
            ended: Heard | None = None
            try:
                ended = await self._senders[call.endpoint].send(call)
            finally:
                self._note(call, ended, sent)
            # Before its place is free: whoever has it next is to know.
            lane.learn(ended.verdict, ended.said, sent=sent, asked_for_s=ended.asked_for_s)
        return ended

    def _note(self, call: Call, heard: Heard | None, sent: float) -> None:
        """Also of a request that was cancelled or took too long."""
        now = time.monotonic()
        status = heard.answer.status if heard is not None and heard.answer is not None else None
        verdict = heard.verdict.value if heard is not None else None
        about = {"endpoint": call.endpoint, "try": call.tries, "status": status}
        failed = verdict if heard is None or heard.verdict is not Verdict.ANSWERED else None
        call.timeline.add("request", sent, now, error=failed, **about)
        self._metrics.observe(call.endpoint, verdict or "ended_here", seconds=now - sent)


def _late(call: Call, last: Heard | None) -> Heard:
    """With the last answer, if there was one: why there was another try."""
    if call.begun is None:
        if last is not None:
            return last
        said = f"its turn did not come within {call.timeout_s:g} s: {call.endpoint} takes no more"
        return Heard(verdict=Verdict.THROTTLED, said=said)
    before = f"; before that {last.said}" if last is not None else ""
    said = f"no answer within {call.timeout_s:g} s{before}"
    return Heard(verdict=Verdict.TIMED_OUT, said=said, answer=last.answer if last is not None else None)


def _said(call: Call, heard: Heard) -> Report:
    match heard.verdict:
        case Verdict.ANSWERED:
            return _report(call, "ok", heard=heard)
        case Verdict.ITS_FAULT:
            return _report(call, "user_error", heard=heard, message=heard.said)
        case trouble:
            again = f", after {call.tries} tries" if call.tries > 1 else ""
            return _report(call, "infra_error", heard=heard, reason=trouble.value, message=heard.said + again)


def _report(
    call: Call,
    outcome: str,
    *,
    heard: Heard | None = None,
    reason: str | None = None,
    message: str | None = None,
) -> Report:
    now = time.monotonic()
    return Report(
        fence=call.fence,
        outcome=outcome,  # type: ignore[arg-type]
        reason=reason,
        message=message,
        answer=heard.answer if heard is not None else None,
        tries=call.tries,
        run_us=int((now - call.begun) * 1e6) if call.begun is not None else 0,
        timeline=call.timeline.written(now),
    )
