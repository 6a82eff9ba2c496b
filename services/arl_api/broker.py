"""Sending of calls, with retries if they are safe, and reports of their results."""

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from arl_api.calls import CallReport, EndpointCall
from arl_api.endpoint_queue import EndpointQueue
from arl_api.metrics import ApiMetrics
from arl_api.sender import EndpointSender, RequestResult
from arl_api.settings import EndpointSettings
from arl_api.verdicts import LAST_RETRY_BEFORE_END_S, NOT_EXECUTED_VERDICTS, CallVerdict, can_retry, retry_delay_s
from arl_core.domain.model import Fence

__all__ = ["EndpointBroker"]


class EndpointBroker:
    """A sender of calls to the endpoints of this node, with one queue for each endpoint."""

    def __init__(
        self,
        endpoints: Mapping[str, EndpointSettings],
        metrics: ApiMetrics,
        *,
        report: Callable[[CallReport], None],
        can_send: Callable[[], bool],
    ) -> None:
        """Create a broker. `can_send` returns True while the lease is valid under which the calls were granted."""
        self.queues = {name: EndpointQueue(each) for name, each in endpoints.items()}
        self._senders = {name: EndpointSender(each) for name, each in endpoints.items()}
        self._metrics = metrics
        self._report, self._can_send = report, can_send
        self._tasks: dict[Fence, asyncio.Task[RequestResult]] = {}
        self._is_stopping = False

    def add(self, call: EndpointCall) -> None:
        """Send a call. Its end is always reported, unless this process ends first."""
        if not self._is_stopping:
            task = asyncio.create_task(self._run_with_timeout(call), name=f"call of {call.endpoint}")
            self._tasks[call.fence] = task
            # Not in the task itself: a task that is cancelled before its first step runs no code.
            task.add_done_callback(partial(self._on_done, call))

    def cancel(self, fences: Iterable[Fence]) -> None:
        """Cancel calls. Their connections are closed, and each call is reported."""
        for fence in fences:
            if (task := self._tasks.get(fence)) is not None:
                task.cancel()

    async def stop(self, grace_s: float) -> None:
        """Wait `grace_s` seconds for calls in flight, then cancel the rest without reports.

        The scheduler reclaims their rows.
        """
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=grace_s)
        self._is_stopping = True
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for sender in self._senders.values():
            await sender.close()

    def _on_done(self, call: EndpointCall, task: "asyncio.Task[RequestResult]") -> None:
        del self._tasks[call.fence]
        if task.cancelled():
            if not self._is_stopping:
                self._report(_build_report(call, "cancelled"))
        elif (error := task.exception()) is not None:
            # A call without a report would stay running forever.
            message = f"the broker failed: {type(error).__name__}"
            self._report(_build_report(call, "infra_error", reason="broker_failed", message=message))
        else:
            self._report(_report_for_result(call, task.result()))

    async def _run_with_timeout(self, call: EndpointCall) -> RequestResult:
        """Send a call with retries. Its timeout starts with its first request; the wait before has the same limit."""
        last: RequestResult | None = None
        try:
            async with asyncio.timeout(call.timeout_s) as limit:
                while True:
                    last = await self._send_once(call, limit)
                    pause = self._retry_delay_s(call, last, limit)
                    if pause is None:
                        return last
                    await asyncio.sleep(pause)
        except TimeoutError:
            late = _timeout_result(call, last, is_sending=call.is_sending)
            if call.first_sent_at is not None:
                self.queues[call.endpoint].record_result(
                    late.verdict, late.message, sent_at=call.first_sent_at, retry_after_s=None
                )
            return late

    def _retry_delay_s(self, call: EndpointCall, result: RequestResult, limit: asyncio.Timeout) -> float | None:
        """Return the delay before the next request, or None if a retry is useless, unsafe or too late.

        A request that was not executed is retried until the time of the call ends; others up to `max_attempts` times.
        """
        settings = self.queues[call.endpoint].settings
        idempotent = call.idempotent or settings.idempotent
        if not result.may_retry or not can_retry(result.verdict, call.method, idempotent=idempotent):
            return None
        if result.verdict not in NOT_EXECUTED_VERDICTS:
            call.executions += 1
            if call.executions >= settings.max_attempts:
                return None
        jitter = random.random()  # noqa: S311 - no secret
        ends_at = limit.when()
        return retry_delay_s(
            max(1, call.attempts),
            retry_after_s=result.retry_after_s,
            random_fraction=jitter,
            left_s=ends_at - asyncio.get_running_loop().time() if ends_at is not None else None,
        )

    async def _send_once(self, call: EndpointCall, limit: asyncio.Timeout) -> RequestResult:
        lane = self.queues[call.endpoint]
        is_last = call.first_sent_at is not None and _left_s(limit) <= LAST_RETRY_BEFORE_END_S
        async with lane.acquire_slot(is_retry=call.first_sent_at is not None, ignore_pause=is_last):
            if not self._can_send():
                return RequestResult(
                    verdict=CallVerdict.UNREACHABLE, message="this broker has lost its lease and sends no requests"
                )
            sent = time.monotonic()
            if call.first_sent_at is None:
                call.first_sent_at = sent
                call.timeline.end_wait(sent)
                limit.reschedule(asyncio.get_running_loop().time() + call.timeout_s)
            call.attempts, lane.requests = call.attempts + 1, lane.requests + 1
            ended: RequestResult | None = None
            call.is_sending = True
            try:
                ended = await self._senders[call.endpoint].send(call)
                call.is_sending = False
            finally:
                self._record_request(call, ended, sent)
            # Before the slot is free, so that the next request uses the new limits.
            lane.record_result(ended.verdict, ended.message, sent_at=sent, retry_after_s=ended.retry_after_s)
        return ended

    def _record_request(self, call: EndpointCall, result: RequestResult | None, sent: float) -> None:
        """Record a request, also one that was cancelled or timed out."""
        now = time.monotonic()
        status = result.response.status if result is not None and result.response is not None else None
        verdict = result.verdict.value if result is not None else None
        about = {"endpoint": call.endpoint, "attempt": call.attempts, "status": status}
        failed = verdict if result is None or result.verdict is not CallVerdict.ANSWERED else None
        call.timeline.add("request", sent, now, error=failed, **about)
        self._metrics.observe(call.endpoint, verdict or "ended_here", seconds=now - sent)


def _left_s(limit: asyncio.Timeout) -> float:
    ends_at = limit.when()
    return ends_at - asyncio.get_running_loop().time() if ends_at is not None else float("inf")


def _timeout_result(call: EndpointCall, last: RequestResult | None, *, is_sending: bool) -> RequestResult:
    """Return the result of a timeout, with the last response, if any, which was the reason for the retry.

    If the time ended before a retry was sent, the last result stands.
    """
    if last is not None and not is_sending:
        return last
    if call.first_sent_at is None:
        said = (
            f"the request could not be sent within {call.timeout_s:g} s, because the limits of endpoint"
            f" {call.endpoint} were reached"
        )
        return RequestResult(verdict=CallVerdict.THROTTLED, message=said)
    before = f"; before that, {last.message}" if last is not None else ""
    said = f"no response within {call.timeout_s:g} s{before}"
    return RequestResult(
        verdict=CallVerdict.TIMED_OUT, message=said, response=last.response if last is not None else None
    )


def _report_for_result(call: EndpointCall, result: RequestResult) -> CallReport:
    match result.verdict:
        case CallVerdict.ANSWERED:
            return _build_report(call, "ok", result=result)
        case CallVerdict.USER_ERROR:
            return _build_report(call, "user_error", result=result, message=result.message)
        case trouble:
            again = f", after {call.attempts} attempts" if call.attempts > 1 else ""
            return _build_report(
                call, "infra_error", result=result, reason=trouble.value, message=result.message + again
            )


def _build_report(
    call: EndpointCall,
    outcome: str,
    *,
    result: RequestResult | None = None,
    reason: str | None = None,
    message: str | None = None,
) -> CallReport:
    now = time.monotonic()
    return CallReport(
        fence=call.fence,
        outcome=outcome,  # type: ignore[arg-type]
        reason=reason,
        message=message,
        endpoint_response=result.response if result is not None else None,
        attempts=call.attempts,
        run_us=int((now - call.first_sent_at) * 1e6) if call.first_sent_at is not None else 0,
        timeline=call.timeline.to_json(now),
    )
