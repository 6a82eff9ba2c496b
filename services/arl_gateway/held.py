"""Actions that a call is held for: durable like any other, and cancelled where nobody waits for them any more."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from arl_gateway.auth import Caller
from arl_gateway.service import Actions, Admitted
from arl_store.tx import is_temporary
from arl_wire.actions import Action
from arl_wire.errors import Unavailable

__all__ = ["PAUSE_S", "Held"]

log = logging.getLogger(__name__)

LOOK_S = 20.0
PAUSE_S = 1.0
"""Before what could not be done is tried again."""


class Held:
    def __init__(self, actions: Actions, *, pause_s: float = PAUSE_S) -> None:
        self._actions, self.pause_s = actions, pause_s
        self._tasks: set[asyncio.Task[Any]] = set()

    async def settled(self, admission: Coroutine[Any, Any, Admitted], caller: Caller) -> Action:
        """Raises what `admission` raises. Where this is cancelled, so is the action, also one that is on its way in."""
        admitting = asyncio.ensure_future(admission)
        try:
            admitted = await asyncio.shield(admitting)
        except asyncio.CancelledError:
            # It may be durable by now, and nobody would know its name.
            self.in_background(self._cancel_admitted(admitting, caller))
            raise
        try:
            return await self._watched(admitted, caller)
        except BaseException:
            self.in_background(self._cancel_admitted(admitting, caller))
            raise

    async def settled_before(
        self, stopping: asyncio.Event, admission: Coroutine[Any, Any, Admitted], caller: Caller
    ) -> Action | None:
        """As `settled`; None where that event comes first: nobody waits any more then, and the action is cancelled."""
        settling = asyncio.ensure_future(self.settled(admission, caller))
        stopped = asyncio.ensure_future(stopping.wait())
        try:
            await asyncio.wait((settling, stopped), return_when=asyncio.FIRST_COMPLETED)
            return settling.result() if settling.done() else None
        finally:
            for each in (settling, stopped):
                each.cancel()

    def in_background(self, doing: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = asyncio.create_task(doing, name="held")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def drain(self) -> None:
        """Until nothing is in the background any more."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _watched(self, admitted: Admitted, caller: Caller) -> Action:
        """As it settled, however often Postgres is away meanwhile: it is durable, and its callers say for how long."""
        look: Callable[..., Awaitable[Action]] = partial(self._actions.outcome, admitted)
        while True:
            begun = time.monotonic()
            try:
                action = await look(caller, wait_s=LOOK_S)
                if action.settled_at is not None:
                    return action
            except Exception as error:
                if not (is_temporary(error) or isinstance(error, Unavailable)):
                    raise
            if time.monotonic() - begun < LOOK_S:  # Postgres is away, or this gateway ends and lets nobody wait
                await asyncio.sleep(self.pause_s)
            look = partial(self._actions.get, admitted.id)

    async def _cancel_admitted(self, admitting: "asyncio.Future[Admitted]", caller: Caller) -> None:
        try:
            await self._actions.cancel((await admitting).id, caller)
        except Exception as error:  # noqa: BLE001 - it was refused, or has an outcome for nobody
            log.info("an action for which nobody waits was not cancelled: %s", error)
