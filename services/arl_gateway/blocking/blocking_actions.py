"""Actions that a call is held for: durable like any other, and cancelled where nobody waits for them any more."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from arl_gateway.actions.service import ActionService, AdmittedAction
from arl_gateway.http.auth import Caller
from arl_store.tx import is_temporary
from arl_wire.actions.action import Action
from arl_wire.errors import Unavailable

__all__ = ["RETRY_PAUSE_S", "BlockingActions"]

log = logging.getLogger(__name__)

POLL_WAIT_S = 20.0
RETRY_PAUSE_S = 1.0
"""Before what could not be done is tried again."""


class BlockingActions:
    def __init__(self, actions: ActionService, *, retry_pause_s: float = RETRY_PAUSE_S) -> None:
        self._actions, self.retry_pause_s = actions, retry_pause_s
        self._tasks: set[asyncio.Task[Any]] = set()

    async def wait_settled(self, admission: Coroutine[Any, Any, AdmittedAction], caller: Caller) -> Action:
        """Raises what `admission` raises. Where this is cancelled, so is the action, also one that is on its way in."""
        admitting = asyncio.ensure_future(admission)
        try:
            admitted = await asyncio.shield(admitting)
        except asyncio.CancelledError:
            # It may be durable by now, and nobody would know its name.
            self.run_in_background(self._cancel_admitted(admitting, caller))
            raise
        try:
            return await self._poll_until_settled(admitted, caller)
        except BaseException:
            self.run_in_background(self._cancel_admitted(admitting, caller))
            raise

    async def wait_settled_or_stopped(
        self, stop_event: asyncio.Event, admission: Coroutine[Any, Any, AdmittedAction], caller: Caller
    ) -> Action | None:
        """As `settled`; None where that event comes first: nobody waits any more then, and the action is cancelled."""
        settling = asyncio.ensure_future(self.wait_settled(admission, caller))
        stopped = asyncio.ensure_future(stop_event.wait())
        try:
            await asyncio.wait((settling, stopped), return_when=asyncio.FIRST_COMPLETED)
            return settling.result() if settling.done() else None
        finally:
            for each in (settling, stopped):
                each.cancel()

    def run_in_background(self, coroutine: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = asyncio.create_task(coroutine, name="held")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def drain(self) -> None:
        """Until nothing is in the background any more."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _poll_until_settled(self, admitted: AdmittedAction, caller: Caller) -> Action:
        """As it settled, however often Postgres is away meanwhile: it is durable, and its callers say for how long."""
        look: Callable[..., Awaitable[Action]] = partial(self._actions.wait_outcome, admitted)
        while True:
            begun = time.monotonic()
            try:
                action = await look(caller, wait_s=POLL_WAIT_S)
                if action.settled_at is not None:
                    return action
            except Exception as error:
                if not (is_temporary(error) or isinstance(error, Unavailable)):
                    raise
            if time.monotonic() - begun < POLL_WAIT_S:  # Postgres is away, or this gateway ends and lets nobody wait
                await asyncio.sleep(self.retry_pause_s)
            look = partial(self._actions.get, admitted.id)

    async def _cancel_admitted(self, admitting: "asyncio.Future[AdmittedAction]", caller: Caller) -> None:
        try:
            await self._actions.cancel((await admitting).id, caller)
        except Exception as error:  # noqa: BLE001 - it was refused, or has an outcome for nobody
            log.info("an action for which nobody waits was not cancelled: %s", error)
