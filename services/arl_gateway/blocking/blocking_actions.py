"""Blocking actions: durable like any other action, and cancelled if the caller disconnects."""

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
"""Seconds before a failed operation is retried."""


class BlockingActions:
    """Actions whose callers wait until they settle."""

    def __init__(self, actions: ActionService, *, retry_pause_s: float = RETRY_PAUSE_S) -> None:
        self._actions, self.retry_pause_s = actions, retry_pause_s
        self._tasks: set[asyncio.Task[Any]] = set()

    async def wait_settled(self, admission: Coroutine[Any, Any, AdmittedAction], caller: Caller) -> Action:
        """Wait until the action settles. If this is cancelled, the action is cancelled too, even during admission.

        Raises the errors of `admission`.
        """
        admitting = asyncio.ensure_future(admission)
        try:
            admitted = await asyncio.shield(admitting)
        except asyncio.CancelledError:
            # The action may be durable already, and no caller knows its id.
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
        """Wait like `wait_settled`. If `stop_event` is set first, cancel the action and return None."""
        settling = asyncio.ensure_future(self.wait_settled(admission, caller))
        stopped = asyncio.ensure_future(stop_event.wait())
        try:
            await asyncio.wait((settling, stopped), return_when=asyncio.FIRST_COMPLETED)
            return settling.result() if settling.done() else None
        finally:
            for each in (settling, stopped):
                each.cancel()

    def run_in_background(self, coroutine: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run the coroutine as a task that `drain` waits for."""
        task = asyncio.create_task(coroutine, name="held")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def drain(self) -> None:
        """Wait until all background tasks have ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _poll_until_settled(self, admitted: AdmittedAction, caller: Caller) -> Action:
        """Wait until the action settles, across outages of Postgres. The action is durable and its caller sets the
        timeout.
        """
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
            if time.monotonic() - begun < POLL_WAIT_S:  # Postgres is unavailable, or this gateway drains
                await asyncio.sleep(self.retry_pause_s)
            look = partial(self._actions.get, admitted.id)

    async def _cancel_admitted(self, admitting: "asyncio.Future[AdmittedAction]", caller: Caller) -> None:
        try:
            await self._actions.cancel((await admitting).id, caller)
        except Exception as error:  # noqa: BLE001 - it was refused, or has already settled
            log.info("an action without a waiting caller could not be cancelled: %s", error)
