"""Channels to the daemons of sandboxes. All requests that overlap in time share one action of the sandbox.

The action occupies cores from the first request until the daemon has answered all requests and all processes have
ended. Then the sandbox is frozen. If the output comes close to the limit of an action, another action continues.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from arl_gateway.actions.service import ActionService, RequestTrace
from arl_gateway.compat.e2b.errors import GuestCallError
from arl_gateway.compat.e2b.turn_output import ABSENT, TurnOutput, turn_error
from arl_gateway.http.auth import Caller
from arl_gateway.streaming.log_streams import LogStreams
from arl_store.tx import Row
from arl_wire.actions.action import DemandSpec, EnvironmentSelector, SubmitActionRequest
from arl_wire.actions.output_events import SendInputRequest
from arl_wire.errors import InputFull, NotRunning, TangramError

__all__ = ["ProcessFeed", "SandboxChannel", "SandboxChannels", "Subscription"]

log = logging.getLogger(__name__)

TURN_ARGV = ["python3", "-S", "-E", ".e2b/turn.py"]
MAX_TURN_S = 86400.0
MAX_ATTEMPTS = 3
"""Actions that may end without an answer to a request before the request fails."""
INPUT_RETRY_S = 0.02
"""Seconds between attempts to send input to an action that has not started or has not read earlier input."""
MAX_STDIN_BYTES = 8 << 20
SLOW_CLIENT_EVENTS = 256
"""Events that wait for a client, each of at most 32 KiB. Beyond them the next action waits for the client."""
SLOW_CLIENT_POLL_S = 0.05
FIRST_YIELD_S, MAX_YIELD_S = 0.25, 5.0
"""Seconds until another gateway's action is asked to end, doubled while this one does not start."""
END_RETRY_S = 0.05
"""Seconds between attempts to end an action that may not have started."""

Subscription = asyncio.Queue["dict[str, Any] | GuestCallError"]
"""Events of a process, or the error that ends them."""


@dataclass(slots=True)
class ProcessFeed:
    """A process that has not ended, and the clients that receive its events."""

    last_number: int = 0
    is_passive: bool = False
    """True for a source that needs no cores, such as a watch: its events come with the next action."""
    subscribers: set[Subscription] = field(default_factory=set)


@dataclass(slots=True)
class _Call:
    line: str
    answer: "asyncio.Future[dict[str, Any]]"
    on_result: Callable[[dict[str, Any]], None] | None
    attempts: int = 0


class SandboxChannel:
    """The requests and processes of one sandbox in this gateway."""

    def __init__(self, sandbox: Row, caller: Caller, actions: ActionService, streams: LogStreams) -> None:
        self._sandbox, self._caller, self._actions, self._streams = sandbox, caller, actions, streams
        self.feeds: dict[int, ProcessFeed] = {}
        self._calls: dict[str, _Call] = {}
        self._unsent: list[str] = []
        """Ids of calls that the running action has not received."""
        self._has_unsent = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._action: UUID | None = None
        self.is_paused = False
        self._suspensions = 0

    @property
    def is_idle(self) -> bool:
        """Return True if no request and no process is unfinished."""
        return self._loop is None and not self.feeds and not self._calls

    async def call(
        self, op: str, arguments: dict[str, Any], on_result: Callable[[dict[str, Any]], None] | None = None
    ) -> dict[str, Any]:
        """Perform an operation in the sandbox. Raises GuestCallError.

        Args:
            on_result: Called with the result before any later event is delivered.
        """
        id = uuid4().hex
        try:
            return await self._add_call(id, op, arguments, on_result)
        finally:
            self._calls.pop(id, None)

    def subscribe(self, pid: int, *, after: int, is_passive: bool = False) -> Subscription:
        """Return the events of a process from now on."""
        feed = self.feeds.setdefault(pid, ProcessFeed(after, is_passive))
        feed.last_number = max(feed.last_number, after)
        events: Subscription = asyncio.Queue()
        feed.subscribers.add(events)
        return events

    def unsubscribe(self, pid: int, events: Subscription) -> None:
        """End a subscription. The process continues. Its output is discarded if no subscription is left."""
        feed = self.feeds.get(pid)
        if feed is None or events not in feed.subscribers:
            return
        feed.subscribers.discard(events)
        if feed.is_passive:
            self.feeds.pop(pid)
            self._forget("unwatch", pid)
        elif not feed.subscribers:
            self._forget("unfollow", pid)

    def _forget(self, op: str, pid: int) -> None:
        """Tell the daemon that events are no longer needed, without waiting for its answer."""
        if not self.is_paused:
            answer = self._add_call(uuid4().hex, op, {"pid": pid}, None)
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def pause(self) -> None:
        """End the running action. The processes stay frozen until `resume`."""
        self.is_paused = True
        for feed in self.feeds.values():
            for each in feed.subscribers:
                each.put_nowait(GuestCallError("unavailable", ABSENT))
            feed.subscribers.clear()
        await self._end_turn()

    @asynccontextmanager
    async def suspended(self) -> AsyncIterator[None]:
        """End the running action, and start no other one inside the block. Subscriptions and calls wait."""
        self._suspensions += 1
        try:
            await self._end_turn()
            yield
        finally:
            self._suspensions -= 1
            if self._calls or self._has_active_feed():
                self._run()

    async def _end_turn(self) -> None:
        """End the running action after it has started, and wait until it has settled."""
        while self._loop is not None:
            if self._action is not None:
                with suppress(TangramError):
                    await self._streams.send_input(self._action, self._caller, SendInputRequest(end=True))
            await asyncio.wait((self._loop,), timeout=END_RETRY_S)

    def resume(self) -> None:
        """Let the processes run again."""
        self.is_paused = False

    def fail(self, error: GuestCallError) -> None:
        """End all calls and subscriptions with an error."""
        for call in self._calls.values():
            if not call.answer.done():
                call.answer.set_exception(error)
        for feed in self.feeds.values():
            for each in feed.subscribers:
                each.put_nowait(error)
        self.feeds.clear()
        self._calls.clear()
        self._unsent.clear()

    async def stop(self) -> None:
        """Stop without ending the running action."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.wait((self._loop,))

    def _add_call(
        self, id: str, op: str, arguments: dict[str, Any], on_result: Callable[[dict[str, Any]], None] | None
    ) -> "asyncio.Future[dict[str, Any]]":
        line = json.dumps({"id": id, "op": op, "arguments": arguments}) + "\n"
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._calls[id] = _Call(line, answer, on_result)
        self._unsent.append(id)
        self._has_unsent.set()
        self._run()
        return answer

    def _run(self) -> None:
        if self._loop is None and not self._must_rest:
            self._loop = asyncio.create_task(self._run_turns())

    @property
    def _must_rest(self) -> bool:
        return self.is_paused or self._suspensions > 0

    async def _run_turns(self) -> None:
        try:
            while (self._calls or self._has_active_feed()) and not self._must_rest:
                await self._run_turn()
                await self._wait_for_clients()
        except GuestCallError as error:
            self.fail(error)
        except TangramError as error:
            self.fail(GuestCallError("internal", f"infra_error: {error.detail}"))
        except Exception:
            log.exception("a channel to a sandbox failed")
            self.fail(GuestCallError("internal", "infra_error: the gateway failed; see its log"))
        finally:
            self._loop = None
        if self._calls:
            self._run()

    async def _wait_for_clients(self) -> None:
        """Wait while a client is slow and there is nothing else to do."""
        while self._has_slow_client() and not self._calls:
            self._has_unsent.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(SLOW_CLIENT_POLL_S):
                    await self._has_unsent.wait()

    def _has_active_feed(self) -> bool:
        return any(not feed.is_passive for feed in self.feeds.values())

    def _has_slow_client(self) -> bool:
        queues = (each for feed in self.feeds.values() for each in feed.subscribers)
        return any(each.qsize() > SLOW_CLIENT_EVENTS for each in queues)

    async def _run_turn(self) -> None:
        """Run one action from its first to its last line."""
        lines = self._first_lines()
        submitted = await self._actions.submit(
            self._turn_action("".join(lines)), self._caller, key=None, trace=RequestTrace()
        )
        self._action = submitted.id
        tasks = {
            asyncio.create_task(self._send_calls(submitted.id)),
            asyncio.create_task(self._end_other_turns(submitted.id)),
        }
        output = TurnOutput()
        try:
            async with aclosing(self._streams.follow(submitted.id, self._caller)) as events:
                async for event in events:
                    self._handle_event(output, event)
        finally:
            self._action = None
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        self._check_turn(output)

    def _first_lines(self) -> list[str]:
        follows = [
            json.dumps({"op": "follow", "pid": pid, "after": feed.last_number}) + "\n"
            for pid, feed in self.feeds.items()
        ]
        self._unsent = []
        lines, size = [], 0
        for id, call in self._calls.items():
            if size and size + len(call.line) > MAX_STDIN_BYTES:
                self._unsent.append(id)
                continue
            call.attempts += 1
            if call.attempts > MAX_ATTEMPTS:
                raise GuestCallError("internal", "infra_error: the sandbox does not answer")
            lines.append(call.line)
            size += len(call.line)
        self._has_unsent.set() if self._unsent else self._has_unsent.clear()
        count = len(follows) + len(lines)
        return [json.dumps({"op": "begin", "count": count}) + "\n", *follows, *lines]

    def _turn_action(self, stdin: str) -> SubmitActionRequest:
        sandbox = self._sandbox
        return SubmitActionRequest(
            task=sandbox.task,
            trajectory=sandbox.trajectory,
            profile="e2b",
            environment=EnvironmentSelector(id=sandbox.id, scope="trajectory"),
            argv=TURN_ARGV,
            user="0:0" if sandbox.has_users else None,  # the daemon starts each command as its own user
            stdin=stdin,
            stdin_open=True,
            timeout_s=MAX_TURN_S,
            demand=DemandSpec(memory_mib=sandbox.memory_mib, disk_mib=sandbox.disk_mib, pids=sandbox.pids),
        )

    async def _send_calls(self, action: UUID) -> None:
        """Send calls to the running action as they come. A call that it does not answer goes to the next action."""
        while True:
            await self._has_unsent.wait()
            self._has_unsent.clear()
            while self._unsent:
                call = self._calls.get(self._unsent[0])
                if call is not None and not call.answer.done():
                    try:
                        await self._streams.send_input(action, self._caller, SendInputRequest(text=call.line))
                    except (NotRunning, InputFull):
                        await asyncio.sleep(INPUT_RETRY_S)
                        continue
                    except TangramError:
                        return
                self._unsent.pop(0)

    async def _end_other_turns(self, action: UUID) -> None:
        """While the action waits, end the sandbox's action of another gateway. That one then waits for this one."""
        pause_s = FIRST_YIELD_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_YIELD_S)
            with suppress(TangramError):
                page = await self._actions.list(
                    self._caller,
                    task=self._sandbox.task,
                    trajectory=self._sandbox.trajectory,
                    state="running",
                    cursor=None,
                    limit=1,
                )
                if any(each.id == action for each in page.items):
                    return
                for each in page.items:
                    await self._streams.send_input(each.id, self._caller, SendInputRequest(end=True))

    def _handle_event(self, output: TurnOutput, event: bytes) -> None:
        """Handle the messages of an event. Programs of the sandbox can change its daemon, so nothing is trusted."""
        try:
            for message in output.add(event):
                self._handle(message)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise GuestCallError("internal", "the daemon of the sandbox sent an invalid message") from None

    def _handle(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answer(message)
        elif "pid" in message:
            self._deliver(message["pid"], message["number"], message["event"])

    def _answer(self, message: dict[str, Any]) -> None:
        call = self._calls.pop(message["id"], None)
        if call is None or call.answer.done():
            return
        if "error" in message:
            call.answer.set_exception(GuestCallError(*message["error"]))
            return
        if call.on_result is not None:
            call.on_result(message["result"])
        call.answer.set_result(message["result"])

    def _deliver(self, pid: int, number: int, event: dict[str, Any]) -> None:
        feed = self.feeds.get(pid)
        if feed is None or number <= feed.last_number:
            return
        feed.last_number = number
        for each in feed.subscribers:
            each.put_nowait(event)
        if "end" in event:
            del self.feeds[pid]

    def _check_turn(self, output: TurnOutput) -> None:
        """Raise GuestCallError if the action did not end by itself."""
        if output.reason in ("full", "yield"):
            return
        if output.reason == "idle":
            for pid in [pid for pid, feed in self.feeds.items() if not feed.is_passive]:
                del self.feeds[pid]
            return
        raise turn_error(output)


class SandboxChannels:
    """The channels of this gateway by sandbox."""

    def __init__(self, actions: ActionService, streams: LogStreams) -> None:
        self._actions, self._streams = actions, streams
        self._channels: dict[UUID, SandboxChannel] = {}

    def channel(self, sandbox: Row) -> SandboxChannel:
        """Return the channel of a sandbox. Channels without work are forgotten."""
        found = self._channels.get(sandbox.id)
        if found is None:
            for id in [id for id, each in self._channels.items() if each.is_idle]:
                del self._channels[id]
            caller = Caller(sandbox.key_id, sandbox.project_id, sandbox.project, frozenset({"actions:write"}))
            found = self._channels[sandbox.id] = SandboxChannel(sandbox, caller, self._actions, self._streams)
        return found

    def end(self, id: UUID) -> None:
        """End the calls and subscriptions of a sandbox that has ended."""
        if (found := self._channels.pop(id, None)) is not None:
            found.fail(GuestCallError("unavailable", ABSENT))

    def drain(self) -> None:
        """End all calls and streams, so that the server can stop. Processes continue."""
        for each in self._channels.values():
            each.fail(GuestCallError("unavailable", "this gateway is stopping; connect again"))

    async def stop(self) -> None:
        """Stop all channels. Their actions continue."""
        await asyncio.gather(*(each.stop() for each in self._channels.values()))
