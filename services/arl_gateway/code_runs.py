"""Programs that a call is held for: compiled, if need be, and run, each by an action of its own.

A call that took too long is answered 504, and what it asked for goes on for a while: its client sends the same again,
and that call takes it up. Who hangs up wants nothing more, and his actions are cancelled.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

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


class CodeRuns:
    def __init__(self, actions: Actions, *, pause_s: float = PAUSE_S, grace_s: float = GRACE_S) -> None:
        self._actions, self._held = actions, Held(actions, pause_s=pause_s)
        self._grace_s = grace_s
        self._left: defaultdict[tuple[int, bytes], deque[asyncio.Task[Ran]]] = defaultdict(deque)
        """Those that were answered 504, by project and key."""
        self.waiting = 0
        """Calls that have no answer yet."""
        self._held_bytes = 0

    async def run(self, wanted: CodeRun, caller: Caller, trace: Trace, *, within_s: float) -> Ran:
        """Raises `GatewayTimeout` after `within_s`, and what admission refuses with but for its having no room."""
        going = self._taken_up(wanted, caller) or self._begun(wanted, self._go(wanted, caller, trace))
        self.waiting += 1
        try:
            async with asyncio.timeout(within_s):
                return await asyncio.shield(going)
        except TimeoutError:
            self._leave(wanted, caller, going)
            raise GatewayTimeout(f"not ended within {within_s:g} s; send the same again to wait on") from None
        except asyncio.CancelledError:
            going.cancel()
            raise
        finally:
            self.waiting -= 1

    async def drain(self) -> None:
        """What nobody waits for is cancelled; the others end."""
        for task in [task for left in self._left.values() for task in left]:
            task.cancel()
        await self._held.drain()

    def _begun(self, wanted: CodeRun, doing: Coroutine[Any, Any, Ran]) -> "asyncio.Task[Ran]":
        if self.waiting >= MAX_WAITING or self._held_bytes + wanted.size > MAX_WAITING_BYTES:
            doing.close()
            raise GatewayTimeout("too many programs are held here already; send the same again")
        self._held_bytes += wanted.size
        task = self._held.in_background(doing)
        task.add_done_callback(partial(self._ended, wanted.size))
        return task

    def _ended(self, size: int, done: "asyncio.Task[Ran]") -> None:
        self._held_bytes -= size
        if not done.cancelled():
            done.exception()  # nobody may wait for it any more

    def _taken_up(self, wanted: CodeRun, caller: Caller) -> "asyncio.Task[Ran] | None":
        left = self._left.get((caller.project_id, wanted.key))
        return left.popleft() if left else None

    def _leave(self, wanted: CodeRun, caller: Caller, going: "asyncio.Task[Ran]") -> None:
        of = caller.project_id, wanted.key
        self._left[of].append(going)
        asyncio.get_running_loop().call_later(self._grace_s, self._forget, of, going)

    def _forget(self, of: tuple[int, bytes], going: "asyncio.Task[Ran]") -> None:
        left = self._left.get(of, deque())
        if going in left:
            left.remove(going)
            going.cancel()
        if not left:
            self._left.pop(of, None)

    async def _go(self, wanted: CodeRun, caller: Caller, trace: Trace) -> Ran:
        if wanted.compile is None:
            return Ran(None, await self._settled(wanted.run, caller, trace))
        try:
            compiled = await self._settled(wanted.compile, caller, trace)
            ran = await self._settled(wanted.run, caller, trace) if compiled.outcome is Outcome.OK else None
            return Ran(compiled, ran)
        finally:
            self._held.in_background(self._end(wanted.compile, caller))

    async def _settled(self, action: SubmitAction, caller: Caller, trace: Trace) -> Action:
        return await self._held.settled(self._admitted(action, caller, trace), caller)

    async def _admitted(self, action: SubmitAction, caller: Caller, trace: Trace) -> Admitted:
        """Held back while there is no way in: these clients come back after nothing but a 504."""
        while True:
            try:
                return await self._actions.admit(action, caller, trace=trace)
            except (TooManyRequests, Unavailable) as refused:
                await asyncio.sleep(refused.retry_after_s or self._held.pause_s)

    async def _end(self, compiled: SubmitAction, caller: Caller) -> None:
        """Where this fails the environment ends by itself, as nobody uses it."""
        try:
            await self._actions.end_trajectory(compiled.task, compiled.trajectory or "", caller)
        except Exception:  # noqa: BLE001 - it was never made, or ends when its time is up
            return
