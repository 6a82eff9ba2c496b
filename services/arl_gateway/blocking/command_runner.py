"""Commands that a call is held for, one action each, until they have settled or their caller goes away."""

import asyncio

from arl_gateway.actions.service import ActionService, AdmittedAction, RequestTrace
from arl_gateway.blocking.blocking_actions import BlockingActions
from arl_gateway.http.auth import Caller
from arl_wire.actions.action import Action, SubmitActionRequest
from arl_wire.errors import TooManyRequests, Unavailable

__all__ = ["CommandRunner"]

ADMISSION_RETRY_S = 60.0
"""So long a command is held that there is no room for: its callers do not come back by themselves."""


class CommandRunner:
    def __init__(self, actions: ActionService, *, admission_retry_s: float = ADMISSION_RETRY_S) -> None:
        self._actions, self._blocking, self._admission_retry_s = actions, BlockingActions(actions), admission_retry_s
        self._stopping = asyncio.Event()
        self.waiting = 0
        """Calls that have no answer yet."""

    async def run(self, action: SubmitActionRequest, caller: Caller, trace: RequestTrace, *, key: str | None) -> Action:
        """Where this is cancelled, so is the action. Raises what admission refuses with.

        Who comes again with the same key has the same action.
        """
        self.waiting += 1
        try:
            admission = self._admit_with_retry(action, caller, trace, key)
            settled = await self._blocking.wait_settled_or_stopped(self._stopping, admission, caller)
        finally:
            self.waiting -= 1
        if settled is None:
            raise Unavailable("this gateway is about to end, and the command with it", retry_after_s=1)
        return settled

    def stop(self) -> None:
        """Who waits is told so."""
        self._stopping.set()

    async def drain(self) -> None:
        """What is left is cancelled."""
        self.stop()
        await self._blocking.drain()

    async def _admit_with_retry(
        self, action: SubmitActionRequest, caller: Caller, trace: RequestTrace, key: str | None
    ) -> AdmittedAction:
        ends_at = asyncio.get_running_loop().time() + self._admission_retry_s
        while True:
            try:
                return await self._actions.admit(action, caller, trace=trace, key=key)
            except (TooManyRequests, Unavailable) as refused:
                pause_s = refused.retry_after_s or self._blocking.retry_pause_s
                if asyncio.get_running_loop().time() + pause_s > ends_at or self._stopping.is_set():
                    raise
            await asyncio.sleep(pause_s)
