"""Programs that a call is held for: compiled, if need be, and run, each by an action of its own.

A call that took too long is answered 504, and what it asked for goes on for a while: its client sends the same again,
and that call takes it up. Who hangs up wants nothing more, and his actions are cancelled.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from arl_core.states import Outcome
from arl_gateway.auth import Caller
from arl_gateway.held import PAUSE_S, Held
from arl_gateway.service import Actions, Admitted, Trace
from arl_wire.actions import Action, SubmitAction
from arl_wire.errors import GatewayTimeout, TooManyRequests, Unavailable

__all__ = ["CodeRun", "CodeRuns", "Ran"]

MAX_WAITING = 20_000
MAX_WAITING_BYTES = 1 << 30
GRACE_S = 30.0
"""So long what was answered 504 waits to be taken up. verl comes back after one or two seconds."""
OUR_TROUBLE = (Outcome.INFRA_ERROR, Outcome.CANCELLED, Outcome.DEADLINE_IN_QUEUE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeRun:
    """`key` is equal for equal bodies. What is compiled runs in the same kept environment, ended afterwards."""

    run: SubmitAction
    compile: SubmitAction | None = None
    key: bytes = b""
    size: int = 0
    """Bytes of the body, which is kept until it has ended."""


@dataclass(frozen=True, slots=True)
class Ran:
    """The settled actions; without `run` where the compiler did not succeed."""

    compile: Action | None
    run: Action | None

    @property
    def settled(self) -> Iterable[Action]:
        return (each for each in (self.compile, self.run) if each is not None)


@dataclass(slots=True, eq=False)
class _Going:
    is_wanted: bool = True
    task: "asyncio.Task[Ran]" = field(init=False)
    forgetting: asyncio.TimerHandle | None = None
    """Until it fires, the next call for the same may take it up."""

    def give_up(self) -> None:
        self.is_wanted = False
        self.task.cancel()

    @property
    def is_of_use(self) -> bool:
        """It goes on, or ended by no trouble of ours: what did is begun anew."""
        if not self.task.done():
            return True
        ended_well = not self.task.cancelled() and self.task.exception() is None
        return ended_well and not any(each.outcome in OUR_TROUBLE for each in self.task.result().settled)


class CodeRuns:
    def __init__(self, actions: Actions, *, pause_s: float = PAUSE_S, grace_s: float = GRACE_S) -> None:
        self._actions, self._held = actions, Held(actions, pause_s=pause_s)
        self._grace_s = grace_s
        self._left: dict[tuple[int, bytes], deque[_Going]] = {}
        """Those that were answered 504, by project and key."""
        self._stopping = asyncio.Event()
        self.waiting = 0
        """Calls that have no answer yet."""
        self._held_bytes = 0

    async def run(self, wanted: CodeRun, caller: Caller, trace: Trace, *, within_s: float) -> Ran:
        """Raises `GatewayTimeout` after `within_s`, and what admission refuses with but for its having no room."""
        ends_at = time.monotonic() + within_s
        self.waiting += 1
        try:
            going = self._taken_up(wanted, caller) or await self._begun(wanted, caller, trace, ends_at)
            return await self._ended(going, wanted, caller, ends_at)
        finally:
            self.waiting -= 1

    def stop(self) -> None:
        """Who waits is answered 504 at once: this gateway is about to end, and knows nothing of it afterwards."""
        self._stopping.set()

    async def drain(self) -> None:
        """What is left is cancelled."""
        self.stop()
        for going in [going for left in self._left.values() for going in left]:
            going.give_up()
        await self._held.drain()

    async def _ended(self, going: _Going, wanted: CodeRun, caller: Caller, ends_at: float) -> Ran:
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            left_s = max(0.0, ends_at - time.monotonic())
            await asyncio.wait((going.task, stopping), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            going.give_up()
            raise
        finally:
            stopping.cancel()
        if going.task.done():
            return going.task.result()
        if self._stopping.is_set():
            going.give_up()
        else:
            self._leave(wanted, caller, going)
        raise GatewayTimeout("it has not ended yet; send the same again to wait on")

    async def _begun(self, wanted: CodeRun, caller: Caller, trace: Trace, ends_at: float) -> _Going:
        while self.waiting > MAX_WAITING or self._held_bytes + wanted.size > MAX_WAITING_BYTES:
            if time.monotonic() > ends_at or self._stopping.is_set():
                raise GatewayTimeout("too many programs are held here already; send the same again")
            await asyncio.sleep(self._held.pause_s)
        going = _Going()
        self._held_bytes += wanted.size
        going.task = self._held.in_background(self._go(wanted, caller, trace, going))
        going.task.add_done_callback(partial(self._over, wanted.size))
        return going

    def _over(self, size: int, done: "asyncio.Task[Ran]") -> None:
        self._held_bytes -= size
        if not done.cancelled():
            done.exception()  # nobody may wait for it any more

    def _taken_up(self, wanted: CodeRun, caller: Caller) -> _Going | None:
        left = self._left.get((caller.project_id, wanted.key))
        while left:
            going = left.popleft()
            if going.forgetting is not None:
                going.forgetting.cancel()
            if going.is_of_use:
                return going
        self._left.pop((caller.project_id, wanted.key), None)
        return None

    def _leave(self, wanted: CodeRun, caller: Caller, going: _Going) -> None:
        of = caller.project_id, wanted.key
        self._left.setdefault(of, deque()).append(going)
        going.forgetting = asyncio.get_running_loop().call_later(self._grace_s, self._forget, of, going)

    def _forget(self, of: tuple[int, bytes], going: _Going) -> None:
        left = self._left[of]
        left.remove(going)
        if not left:
            del self._left[of]
        going.give_up()

    async def _go(self, wanted: CodeRun, caller: Caller, trace: Trace, going: _Going) -> Ran:
        settled = partial(self._settled, caller=caller, trace=trace, going=going)
        if wanted.compile is None:
            return Ran(None, await settled(wanted.run))
        try:
            compiled = await settled(wanted.compile)
            return Ran(compiled, await settled(wanted.run) if compiled.outcome is Outcome.OK else None)
        finally:
            self._held.in_background(self._end(wanted.compile, caller))

    async def _settled(self, action: SubmitAction, *, caller: Caller, trace: Trace, going: _Going) -> Action:
        return await self._held.settled(self._admitted(action, caller, trace, going), caller)

    async def _admitted(self, action: SubmitAction, caller: Caller, trace: Trace, going: _Going) -> Admitted:
        """Held back while there is no way in: these clients come back after nothing but a 504."""
        while going.is_wanted:
            try:
                return await self._actions.admit(action, caller, trace=trace)
            except (TooManyRequests, Unavailable) as refused:
                await asyncio.sleep(refused.retry_after_s or self._held.pause_s)
        raise Unavailable("nobody waits for it any more")

    async def _end(self, compiled: SubmitAction, caller: Caller) -> None:
        """Where this fails the environment ends by itself, as nobody uses it."""
        try:
            await self._actions.end_trajectory(compiled.task, compiled.trajectory or "", caller)
        except Exception:  # noqa: BLE001 - it was never made, or ends when its time is up
            return
