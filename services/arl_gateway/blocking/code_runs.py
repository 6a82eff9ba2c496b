"""Programs that run while their call blocks: a run action, and optional actions before and after it.

A call that takes too long gets 504, and its program continues for a while. If the client repeats the request, the new
call resumes the wait. If the client disconnects, its actions are cancelled.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from arl_core.domain.states import MASKED_OUTCOMES, ActionOutcome
from arl_gateway.actions.service import ActionService, AdmittedAction, RequestTrace
from arl_gateway.blocking.blocking_actions import RETRY_PAUSE_S, BlockingActions
from arl_gateway.http.auth import Caller
from arl_wire.actions.action import Action, SubmitActionRequest
from arl_wire.errors import GatewayTimeout, TooManyRequests, Unavailable

__all__ = ["CodeRun", "CodeRunResult", "CodeRunner"]

MAX_PENDING = 20_000
MAX_PENDING_BYTES = 1 << 30
RESUME_GRACE_S = 30.0
"""Seconds that a run waits to be resumed after a 504. verl retries after one or two seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeRun:
    """A program to run, with optional steps: place files, compile, run, collect files.

    If there are several, they share an environment that is deleted afterwards. `key` is equal for equal request bodies.
    """

    run: SubmitActionRequest
    place: SubmitActionRequest | None = None
    compile: SubmitActionRequest | None = None
    collect: SubmitActionRequest | None = None
    key: bytes = b""
    size: int = 0
    """Size of the request body in bytes; the body stays in memory until the run ends."""

    @property
    def has_own_environment(self) -> bool:
        """Return True if the steps share an environment that only they use."""
        return any(each is not None for each in (self.place, self.compile, self.collect))


@dataclass(frozen=True, slots=True)
class CodeRunResult:
    """The settled actions of a run. Steps after one that failed are None, but files are collected after every run.

    `collect` is also None if the call ended while files were collected.
    """

    place: Action | None = None
    compile: Action | None = None
    run: Action | None = None
    collect: Action | None = None

    @property
    def settled_actions(self) -> Iterable[Action]:
        """Return the actions that ran, in their order."""
        return (each for each in (self.place, self.compile, self.run, self.collect) if each is not None)


@dataclass(slots=True, eq=False)
class _InFlightRun:
    is_active: bool = True
    task: "asyncio.Task[CodeRunResult]" = field(init=False)
    expiry_timer: asyncio.TimerHandle | None = None
    """Timer that ends the time in which the run can be resumed."""

    def cancel(self) -> None:
        """End the run: its actions are cancelled."""
        self.is_active = False
        self.task.cancel()

    @property
    def is_resumable(self) -> bool:
        """Return True if the run is active or ended without an infrastructure error. A failed run must start again."""
        if not self.task.done():
            return True
        ended_well = not self.task.cancelled() and self.task.exception() is None
        return ended_well and not any(each.outcome in MASKED_OUTCOMES for each in self.task.result().settled_actions)


class CodeRunner:
    """The runs of programs whose calls block, or can still be resumed."""

    def __init__(
        self, actions: ActionService, *, retry_pause_s: float = RETRY_PAUSE_S, resume_grace_s: float = RESUME_GRACE_S
    ) -> None:
        self._actions, self._blocking = actions, BlockingActions(actions, retry_pause_s=retry_pause_s)
        self._resume_grace_s = resume_grace_s
        self._resumable: dict[tuple[int, bytes], deque[_InFlightRun]] = {}
        """Runs that were answered 504, by project and key."""
        self._stopping = asyncio.Event()
        self.waiting = 0
        """Number of calls without an answer."""
        self._pending_bytes = 0

    async def run(self, code_run: CodeRun, caller: Caller, trace: RequestTrace, *, within_s: float) -> CodeRunResult:
        """Run a program. If admission has no room, retry until the call times out.

        Raises `GatewayTimeout` after `within_s`, and all other errors of admission.
        """
        ends_at = time.monotonic() + within_s
        self.waiting += 1
        try:
            going = self._resume_run(code_run, caller) or await self._start_run(code_run, caller, trace, ends_at)
            return await self._wait_for_run(going, code_run, caller, ends_at)
        finally:
            self.waiting -= 1

    def stop(self) -> None:
        """Answer all waiting calls with 504. This gateway shuts down, and the next one does not know its runs."""
        self._stopping.set()

    async def drain(self) -> None:
        """Cancel the remaining runs and wait for them."""
        self.stop()
        for going in [going for left in self._resumable.values() for going in left]:
            going.cancel()
        await self._blocking.drain()

    async def _wait_for_run(
        self, in_flight: _InFlightRun, code_run: CodeRun, caller: Caller, ends_at: float
    ) -> CodeRunResult:
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            left_s = max(0.0, ends_at - time.monotonic())
            await asyncio.wait((in_flight.task, stopping), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            in_flight.cancel()
            raise
        finally:
            stopping.cancel()
        if in_flight.task.done():
            return in_flight.task.result()
        if self._stopping.is_set():
            in_flight.cancel()
        else:
            self._keep_resumable(code_run, caller, in_flight)
        raise GatewayTimeout("the program has not ended yet; repeat the same request to wait further")

    async def _start_run(self, code_run: CodeRun, caller: Caller, trace: RequestTrace, ends_at: float) -> _InFlightRun:
        while self.waiting > MAX_PENDING or self._pending_bytes + code_run.size > MAX_PENDING_BYTES:
            if time.monotonic() > ends_at or self._stopping.is_set():
                raise GatewayTimeout("too many programs are waiting in this gateway; repeat the same request")
            await asyncio.sleep(self._blocking.retry_pause_s)
        going = _InFlightRun()
        self._pending_bytes += code_run.size
        going.task = self._blocking.run_in_background(self._run_steps(code_run, caller, trace, going))
        going.task.add_done_callback(partial(self._run_finished, code_run.size))
        return going

    def _run_finished(self, size: int, done: "asyncio.Task[CodeRunResult]") -> None:
        self._pending_bytes -= size
        if not done.cancelled():
            done.exception()  # retrieve it: its call may have disconnected

    def _resume_run(self, code_run: CodeRun, caller: Caller) -> _InFlightRun | None:
        left = self._resumable.get((caller.project_id, code_run.key))
        while left:
            going = left.popleft()
            if going.expiry_timer is not None:
                going.expiry_timer.cancel()
            if going.is_resumable:
                return going
        self._resumable.pop((caller.project_id, code_run.key), None)
        return None

    def _keep_resumable(self, code_run: CodeRun, caller: Caller, in_flight: _InFlightRun) -> None:
        of = caller.project_id, code_run.key
        self._resumable.setdefault(of, deque()).append(in_flight)
        in_flight.expiry_timer = asyncio.get_running_loop().call_later(
            self._resume_grace_s, self._expire_run, of, in_flight
        )

    def _expire_run(self, run_key: tuple[int, bytes], in_flight: _InFlightRun) -> None:
        left = self._resumable[run_key]
        left.remove(in_flight)
        if not left:
            del self._resumable[run_key]
        in_flight.cancel()

    async def _run_steps(
        self, code_run: CodeRun, caller: Caller, trace: RequestTrace, in_flight: _InFlightRun
    ) -> CodeRunResult:
        settle = partial(self._run_action, caller=caller, trace=trace, going=in_flight)
        result = CodeRunResult()
        try:
            if code_run.place is not None:
                result = replace(result, place=await settle(code_run.place))
            if code_run.compile is not None and _has_succeeded(result):
                result = replace(result, compile=await settle(code_run.compile))
            if not _has_succeeded(result):
                return result
            ran = await settle(code_run.run)
            result = replace(result, run=ran)
            if code_run.collect is not None and ran.outcome not in MASKED_OUTCOMES:
                result = replace(result, collect=await settle(code_run.collect))
            return result
        finally:
            if code_run.has_own_environment:
                self._blocking.run_in_background(self._end_environment(code_run.run, caller))

    async def _run_action(
        self, action: SubmitActionRequest, *, caller: Caller, trace: RequestTrace, going: _InFlightRun
    ) -> Action:
        return await self._blocking.wait_settled(self._admit_with_retry(action, caller, trace, going), caller)

    async def _admit_with_retry(
        self, action: SubmitActionRequest, caller: Caller, trace: RequestTrace, in_flight: _InFlightRun
    ) -> AdmittedAction:
        """Admit an action, retrying while admission has no room. Clients of this protocol retry only after a 504."""
        while in_flight.is_active:
            try:
                return await self._actions.admit(action, caller, trace=trace)
            except (TooManyRequests, Unavailable) as refused:
                await asyncio.sleep(refused.retry_after_s or self._blocking.retry_pause_s)
        raise Unavailable("the call of this program has ended")

    async def _end_environment(self, run: SubmitActionRequest, caller: Caller) -> None:
        """Delete the environment. If this fails, the environment ends after its idle time-to-live."""
        try:
            await self._actions.end_trajectory(run.task, run.trajectory or "", caller)
        except Exception:  # noqa: BLE001 - it was never created, or ends after its idle time-to-live
            return


def _has_succeeded(result: CodeRunResult) -> bool:
    return all(each.outcome is ActionOutcome.OK for each in result.settled_actions)
