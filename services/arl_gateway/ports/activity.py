"""The action that lets an environment run while connections to its ports are open.

An environment without a running action is frozen and has no cores. While connections are open, one of its actions
must run. If none does, this module submits an action that only waits. It is an ordinary action: the scheduler grants
its cores, and the environment has one action at a time. So it ends as soon as another action of the environment is
queued, and the connections stay open meanwhile.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

from arl_core.domain.states import ActionOutcome, ActionState
from arl_gateway.actions.service import ActionService, RequestTrace
from arl_gateway.http.auth import Caller
from arl_gateway.ports import queries
from arl_gateway.streaming.log_streams import LogStreams
from arl_store.tx import PostgresStore, Row
from arl_wire.actions.action import DemandSpec, EnvironmentSelector, SubmitActionRequest
from arl_wire.actions.output_events import SendInputRequest
from arl_wire.errors import Conflict, TangramError, Unavailable

__all__ = ["PORT_PROFILE", "PortActivity", "PortConnection"]

log = logging.getLogger(__name__)

PORT_PROFILE = "port"
WAIT_ARGV = ["sh", "-c", "read -r _ || :"]
"""The program of the action: it waits for the end of its input."""
MAX_ACTION_S = 60.0
"""Limit of the action in seconds. If this gateway dies, the environment rests again after this time."""
RENEW_S = 45.0
"""Seconds of a running action after which the next one continues."""
LINGER_S = 0.5
"""Seconds without a connection until the action ends: a browser opens its next connection sooner."""
FIRST_POLL_S, MAX_POLL_S = 0.1, 1.0
"""Seconds between searches for other actions of the environment, doubled while there is none."""
SETTLE_WAIT_S = 20.0
END_RETRY_S = 0.05
"""Seconds between attempts to end an action that may not have started."""
END_LIMIT_S = 10.0
"""Seconds until an action that does not end, such as on a lost node, is left to its own limit."""


class PortConnection:
    """An open connection to a server inside an environment."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.stopped = asyncio.Event()
        self.error: TangramError | None = None
        """The reason for which the gateway ended the connection."""

    def fail(self, error: TangramError) -> None:
        """End the connection with an error."""
        self.error = self.error or error
        self.stopped.set()
        self.writer.transport.abort()


class PortActivity:
    """The connections of one environment in this gateway. It ends after the last connection."""

    def __init__(
        self,
        environment: Row,
        caller: Caller,
        *,
        store: PostgresStore,
        actions: ActionService,
        streams: LogStreams,
        on_end: Callable[["PortActivity"], None],
    ) -> None:
        self.environment = environment
        self._caller = caller
        self._store, self._actions, self._streams = store, actions, streams
        self._on_end = on_end
        self.connections: set[PortConnection] = set()
        self._opened, self._all_closed = asyncio.Event(), asyncio.Event()
        self._action: UUID | None = None
        self._running_since: float | None = None
        self._poll_s = FIRST_POLL_S
        self._task: asyncio.Task[None] | None = None

    def add(self, connection: PortConnection) -> None:
        """Add an open connection. The environment runs from now on."""
        self.connections.add(connection)
        self._opened.set()
        self._all_closed.clear()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="port activity")

    def remove(self, connection: PortConnection) -> None:
        """Remove a closed connection."""
        self.connections.discard(connection)
        if not self.connections:
            self._opened.clear()
            self._all_closed.set()

    def fail(self, error: TangramError) -> None:
        """End all connections with an error."""
        for each in tuple(self.connections):
            each.fail(error)
            self.remove(each)

    async def stop(self, error: TangramError) -> None:
        """End all connections and the action, and wait until no process of the environment runs because of them."""
        self.fail(error)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        try:
            while self.connections:
                await self._serve()
        finally:
            self._on_end(self)

    async def _serve(self) -> None:
        """Let the environment run until the last connection is closed."""
        try:
            while self.connections or await self._is_reopened():
                await self._advance()
        except TangramError as error:
            self.fail(error)
        except Exception as error:
            log.warning("connections to environment %s end", self.environment.id, exc_info=True)
            self.fail(Unavailable(f"the gateway has a problem ({type(error).__name__}); try again", retry_after_s=1))
        finally:
            if self._action is not None:
                await self._leave_action(self._action)

    async def _leave_action(self, id: UUID) -> None:
        """End the last action. If the database is not reachable, it ends at its own limit."""
        try:
            await self._end_action(id)
        except Exception:
            log.warning("action %s of closed connections ends at its limit", id, exc_info=True)

    async def _is_reopened(self) -> bool:
        """Return True if a connection is opened soon after the last one was closed."""
        if self._action is None:
            return False
        with suppress(TimeoutError):
            await asyncio.wait_for(self._opened.wait(), LINGER_S)
        return bool(self.connections)

    async def _advance(self) -> None:
        """Read the state of the environment and take the next step. Raises TangramError if it cannot be used."""
        async with self._store.read() as tx:
            found = await queries.environment_activity(tx, self.environment.id)
        if found is None or not found.is_live:
            raise Conflict(f"environment {self.environment.id} has ended")
        if found.is_paused:
            raise Conflict(f"environment {self.environment.id} is paused")
        if self._action is not None and self._action not in found.active:
            action, self._action = self._action, None
            await self._check_outcome(action)
        others = [each for each in found.active if each != self._action]
        if self._action is None and others:
            await self._wait_for(others[0], SETTLE_WAIT_S)
        elif self._action is None:
            self._action = await self._submit()
            self._running_since, self._poll_s = None, FIRST_POLL_S
        elif others or (self._running_since is not None and time.monotonic() - self._running_since > RENEW_S):
            await self._end_action(self._action)
        else:
            state = await self._wait_for(self._action, self._poll_s)
            if state is ActionState.RUNNING and self._running_since is None:
                self._running_since = time.monotonic()
            self._poll_s = min(2 * self._poll_s, MAX_POLL_S)

    async def _submit(self) -> UUID:
        row = self.environment
        action = SubmitActionRequest(
            task=row.task,
            trajectory=row.trajectory,
            profile=PORT_PROFILE,
            environment=EnvironmentSelector(id=row.id, scope="trajectory"),
            argv=WAIT_ARGV,
            stdin_open=True,
            timeout_s=MAX_ACTION_S,
            wall_timeout_s=MAX_ACTION_S,
            demand=DemandSpec(memory_mib=row.memory_mib, disk_mib=row.disk_mib, pids=row.pids),
        )
        return (await self._actions.admit(action, self._caller, trace=RequestTrace())).id

    async def _wait_for(self, action: UUID, wait_s: float) -> ActionState | None:
        """Wait until the action settles or the time has passed, and return its state.

        Return None if the last connection is closed before.
        """
        reading = asyncio.ensure_future(self._actions.get(action, self._caller, wait_s=wait_s))
        closing = asyncio.ensure_future(self._all_closed.wait())
        try:
            await asyncio.wait((reading, closing), return_when=asyncio.FIRST_COMPLETED)
            return reading.result().state if reading.done() else None
        finally:
            reading.cancel()
            closing.cancel()
            await asyncio.gather(reading, closing, return_exceptions=True)

    async def _check_outcome(self, id: UUID) -> None:
        """Raise TangramError if the action ended in another way than by the end of its input or of its time."""
        ended = await self._actions.get(id, self._caller)
        if ended.outcome in (ActionOutcome.OK, ActionOutcome.USER_TIMEOUT):
            return
        reason = f"environment {self.environment.id} does not run: its action {id} ended as {ended.outcome}"
        message = f"{reason} ({ended.message or ended.reason})"
        if ended.outcome is ActionOutcome.INFRA_ERROR:
            raise Unavailable(f"infra_error: {message}; try again", retry_after_s=1)
        raise Conflict(message)

    async def _end_action(self, id: UUID) -> None:
        """End the action, and wait until it has settled. Another attempt must follow if it does not."""
        give_up_at = time.monotonic() + END_LIMIT_S
        while time.monotonic() < give_up_at:
            with suppress(TangramError):
                await self._streams.send_input(id, self._caller, SendInputRequest(end=True))
            found = await self._actions.get(id, self._caller, wait_s=END_RETRY_S)
            if found.settled_at is None and found.state is ActionState.QUEUED:
                found = await self._actions.cancel(id, self._caller)
            if found.settled_at is not None:
                self._action = None
                return
