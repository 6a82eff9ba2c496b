"""Commands that run while their call blocks, one action each, until they settle or the caller disconnects."""

import asyncio

from arl_gateway.actions.service import ActionService, AdmittedAction, RequestTrace
from arl_gateway.blocking.blocking_actions import BlockingActions
from arl_gateway.http.auth import Caller
from arl_wire.actions.action import Action, SubmitActionRequest
from arl_wire.errors import TooManyRequests, Unavailable

__all__ = ["CommandRunner"]

ADMISSION_RETRY_S = 60.0
"""Seconds to retry a command that admission has no room for. The callers do not retry by themselves."""


class CommandRunner:
    """Commands whose calls block until they settle."""

    def __init__(self, actions: ActionService, *, admission_retry_s: float = ADMISSION_RETRY_S) -> None:
        self._actions, self._blocking, self._admission_retry_s = actions, BlockingActions(actions), admission_retry_s
        self._stopping = asyncio.Event()
        self.waiting = 0
        """Number of calls without an answer."""

    async def run(self, action: SubmitActionRequest, caller: Caller, trace: RequestTrace, *, key: str | None) -> Action:
        """Run a command. Cancelling this call cancels the action. A repeated `key` returns the same action.

        Raises the errors of admission.
        """
        self.waiting += 1
        try:
            admission = self._admit_with_retry(action, caller, trace, key)
            settled = await self._blocking.wait_settled_or_stopped(self._stopping, admission, caller)
        finally:
            self.waiting -= 1
        if settled is None:
            raise Unavailable("this gateway is stopping and has cancelled the command; try again", retry_after_s=1)
        return settled

    def stop(self) -> None:
        """Answer all waiting calls with `Unavailable`."""
        self._stopping.set()

    async def drain(self) -> None:
        """Cancel the remaining commands and wait for them."""
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
