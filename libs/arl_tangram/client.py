"""The blocking client `Tangram` and the asynchronous client `AsyncTangram`, which have the same methods."""

import asyncio
import builtins
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar, Unpack
from uuid import UUID, uuid4

from arl_tangram import batches, operations
from arl_tangram.operations import Operation, RetryDelay, SdkResponse, WaitTimeout
from arl_tangram.options import ExecOptions, exec_action, file_action
from arl_tangram.resources import output_streams
from arl_tangram.resources.administration import AdminMethods, AsyncAdminMethods
from arl_tangram.resources.endpoints import AsyncEndpointMethods, EndpointMethods
from arl_tangram.resources.files import AsyncFileMethods, FileMethods
from arl_tangram.resources.output_streams import OutputEvent
from arl_tangram.resources.queues import AsyncQueueMethods, QueueMethods
from arl_tangram.resources.reward_services import AsyncRewardServiceMethods, RewardServiceMethods
from arl_tangram.timeouts import with_timeout
from arl_tangram.transport.connection import resolve_connection
from arl_tangram.transport.http_channels import AsyncHttpChannel, SyncHttpChannel
from arl_tangram.transport.http_requests import send, send_async
from arl_wire.actions.action import Action, SubmitActionRequest
from arl_wire.actions.explanations import ActionExplanation
from arl_wire.actions.traces import ActionTrace
from arl_wire.environments.environment import CreateEnvironmentRequest, EnvironmentInfo
from arl_wire.errors import TangramError

__all__ = ["AsyncTangram", "Tangram"]

Value = TypeVar("Value")
RETRY_TIMEOUT_S = 120.0
MAX_DEDICATED_WAITS = 512
"""Runs of one client that wait on a connection each; further runs share one request."""
CANCEL_TIMEOUT_S = 5.0
"""Seconds for which a cancelled `run` waits for the cancellation of its action."""


class Tangram(FileMethods, RewardServiceMethods, EndpointMethods, QueueMethods, AdminMethods):
    """A blocking client, safe to share between threads and to use after a fork.

    Without arguments it finds the system of this machine: TANGRAM_URL and TANGRAM_API_KEY, else the state that
    `tangram up` wrote. Calls are retried for `retry_timeout_s` seconds while services restart.
    """

    def __init__(
        self, url: str | None = None, api_key: str | None = None, *, retry_timeout_s: float = RETRY_TIMEOUT_S
    ) -> None:
        self._channel = SyncHttpChannel(resolve_connection(url, api_key))
        self._retry_timeout_s = retry_timeout_s

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def submit(self, action: SubmitActionRequest | None = None, /, **options: Unpack[ExecOptions]) -> Action:
        """Submit an action. When this returns, the action is durable and will settle exactly once."""
        return self._run(
            operations.submit(_to_action(action, options), wait_s=0, retry_timeout_s=self._retry_timeout_s)
        )

    def submit_many(self, actions: Sequence[SubmitActionRequest]) -> list[UUID]:
        """Submit actions and return their ids in order. Raises `BatchRefused` if any was refused; the others run."""
        return self._run(batches.submit_many(actions, retry_timeout_s=self._retry_timeout_s))

    def submit_gang(self, actions: Sequence[SubmitActionRequest]) -> list[UUID]:
        """Submit a gang and return its ids in order. Raises `BatchRefused` if any was refused; then none runs."""
        return self._run(batches.submit_gang(actions, retry_timeout_s=self._retry_timeout_s))

    def run(
        self,
        action: SubmitActionRequest | None = None,
        /,
        *,
        wait_timeout_s: float | None = None,
        **options: Unpack[ExecOptions],
    ) -> Action:
        """Submit and wait for the outcome. Raises `WaitTimeout` after `wait_timeout_s`; the action continues.

        If the gateway does not answer in this time, it raises `Unavailable`; the action may or may not be submitted.
        """
        waiting = operations.run(
            _to_action(action, options), timeout_s=wait_timeout_s, retry_timeout_s=self._retry_timeout_s
        )
        return self._run(with_timeout(waiting, wait_timeout_s))

    def wait(self, ids: Sequence[UUID | str], *, timeout_s: float | None = None) -> list[Action]:
        """Wait until all actions have settled and return them in the order of `ids`. Raises `WaitTimeout`."""
        return self._run(
            with_timeout(operations.wait(ids, timeout_s=timeout_s, retry_timeout_s=self._retry_timeout_s), timeout_s)
        )

    def as_completed(self, ids: Sequence[UUID | str], *, timeout_s: float | None = None) -> Iterator[Action]:
        """Yield each action once, as it settles. Raises `WaitTimeout`."""
        ends_at = _deadline(timeout_s)
        pending = dict.fromkeys(map(operations.parse_action_id, ids))
        while pending:
            left = _remaining_s(ends_at)
            waiting = operations.wait_any(list(pending), timeout_s=left, retry_timeout_s=self._retry_timeout_s)
            for action in self._run(with_timeout(waiting, left)):
                pending.pop(action.id)
                yield action

    def get(self, id: UUID, *, wait_s: float = 0.0) -> Action:
        return self._run(operations.get(id, wait_s=wait_s, retry_timeout_s=self._retry_timeout_s))

    def trace(self, id: UUID) -> ActionTrace:
        """Return the timeline of an action in any state."""
        return self._run(operations.trace(id, retry_timeout_s=self._retry_timeout_s))

    def explain(self, id: UUID) -> ActionExplanation:
        """Return why an action waits, or which resources it has or had and when."""
        return self._run(operations.explain(id, retry_timeout_s=self._retry_timeout_s))

    def list(
        self, *, task: str | None = None, trajectory: str | None = None, state: str | None = None
    ) -> Iterator[Action]:
        """Iterate over actions, newest first, without results, page by page."""
        query = _query_params(task=task, trajectory=trajectory, state=state)
        while True:
            page = self._run(operations.list_actions(query, retry_timeout_s=self._retry_timeout_s))
            yield from page.items
            if page.next_cursor is None:
                return
            query["cursor"] = page.next_cursor

    def cancel(self, id: UUID) -> Action:
        """Request the cancellation of an action. A settled action is returned unchanged."""
        return self._run(operations.cancel(id, retry_timeout_s=self._retry_timeout_s))

    def stream_logs(self, id: UUID) -> Iterator[OutputEvent]:
        """Stream the output of an action and its end. A broken connection is reopened, and no event is repeated."""
        return output_streams.stream_output(self._channel.http, id, retry_timeout_s=self._retry_timeout_s)

    def send_input(self, id: UUID, content: bytes | str, *, end: bool = False, offset: int | None = None) -> int:
        """Send input to an action that was submitted with `stdin_open`. Waits until it runs and sends exactly once.

        Returns the `offset` of the next input. `end`: no input follows.
        Raises `Conflict` if the action or its input has ended.
        """
        return self._run(
            output_streams.send_input(id, content, end=end, offset=offset, retry_timeout_s=self._retry_timeout_s)
        )

    def put_files(self, task: str, trajectory: str, files: Mapping[str, bytes | str]) -> None:
        """Write files into a trajectory's environment, and create the environment if necessary."""
        operations.expect_ok(self.run(file_action(task, trajectory, files=files)))

    def get_files(self, task: str, trajectory: str, paths: Sequence[str]) -> dict[str, bytes]:
        """Read files of a trajectory's environment. Files that do not exist are left out."""
        action = self.run(file_action(task, trajectory, fetch=paths))
        return operations.fetched_files(operations.expect_ok(action))

    def end_trajectory(self, task: str, trajectory: str) -> None:
        """Cancel the trajectory's remaining actions and end its environment."""
        self._run(operations.end_trajectory(task, trajectory, retry_timeout_s=self._retry_timeout_s))

    def create_environment(self, request: CreateEnvironmentRequest) -> EnvironmentInfo:
        """Create an environment before its first action. Returns when it exists."""
        return self._run(operations.create_environment(request, retry_timeout_s=self._retry_timeout_s))

    def environment(self, id: UUID) -> EnvironmentInfo:
        return self._run(operations.get_environment(id, retry_timeout_s=self._retry_timeout_s))

    def environments(
        self, *, task: str | None = None, trajectory: str | None = None, state: str | None = None
    ) -> builtins.list[EnvironmentInfo]:
        """List all environments, newest first. Ended environments are included unless `state` is `live`."""
        query = _query_params(task=task, trajectory=trajectory, state=state)
        return self._run(operations.list_environments(query, retry_timeout_s=self._retry_timeout_s))

    def end_environment(self, id: UUID) -> None:
        """End an environment and delete its content. Actions that wait for it are cancelled."""
        self._run(operations.end_environment(id, retry_timeout_s=self._retry_timeout_s))

    def _run(self, operation: Operation[Value]) -> Value:
        reply: SdkResponse | None = None
        while True:
            try:
                step = operation.send(reply)
            except StopIteration as end:
                value: Value = end.value
                return value
            if isinstance(step, RetryDelay):
                time.sleep(step.seconds)
                reply = None
            else:
                reply = send(self._channel.http, step)


class AsyncTangram(
    AsyncFileMethods, AsyncRewardServiceMethods, AsyncEndpointMethods, AsyncQueueMethods, AsyncAdminMethods
):
    """An asynchronous client for any event loop. `Tangram` documents the methods."""

    def __init__(
        self, url: str | None = None, api_key: str | None = None, *, retry_timeout_s: float = RETRY_TIMEOUT_S
    ) -> None:
        self._channel = AsyncHttpChannel(resolve_connection(url, api_key))
        self._retry_timeout_s = retry_timeout_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._channel.close()

    async def submit(self, action: SubmitActionRequest | None = None, /, **options: Unpack[ExecOptions]) -> Action:
        return await self._run(
            operations.submit(_to_action(action, options), wait_s=0, retry_timeout_s=self._retry_timeout_s)
        )

    async def submit_many(self, actions: Sequence[SubmitActionRequest]) -> list[UUID]:
        return await self._run(batches.submit_many(actions, retry_timeout_s=self._retry_timeout_s))

    async def submit_gang(self, actions: Sequence[SubmitActionRequest]) -> list[UUID]:
        return await self._run(batches.submit_gang(actions, retry_timeout_s=self._retry_timeout_s))

    async def run(
        self,
        action: SubmitActionRequest | None = None,
        /,
        *,
        wait_timeout_s: float | None = None,
        **options: Unpack[ExecOptions],
    ) -> Action:
        """Submit and wait for the outcome. If the awaiting task is cancelled, its action is cancelled, too."""
        wanted, key = _to_action(action, options), uuid4().hex
        running = (
            self._run_with_shared_wait
            if self._channel.dedicated_waits >= MAX_DEDICATED_WAITS
            else self._run_with_dedicated_wait
        )
        try:
            return await running(wanted, key, wait_timeout_s)
        except asyncio.CancelledError:
            with suppress(TangramError, TimeoutError):
                async with asyncio.timeout(CANCEL_TIMEOUT_S):
                    await self._run(operations.cancel_submitted(wanted, retry_timeout_s=CANCEL_TIMEOUT_S, key=key))
            raise

    async def _run_with_dedicated_wait(self, action: SubmitActionRequest, key: str, timeout_s: float | None) -> Action:
        waiting = operations.run(action, timeout_s=timeout_s, retry_timeout_s=self._retry_timeout_s, key=key)
        self._channel.dedicated_waits += 1
        try:
            return await self._run(with_timeout(waiting, timeout_s))
        finally:
            self._channel.dedicated_waits -= 1

    async def _run_with_shared_wait(self, action: SubmitActionRequest, key: str, timeout_s: float | None) -> Action:
        ends_at = _deadline(timeout_s)
        submitting = operations.submit(action, wait_s=0, retry_timeout_s=self._retry_timeout_s, key=key)
        found = await self._run(with_timeout(submitting, timeout_s))
        if found.settled_at is not None:
            return found
        try:
            async with asyncio.timeout(_remaining_s(ends_at)):
                return await self._channel.shared_wait(self._fetch_settled).wait_settled(found.id)
        except TimeoutError:
            raise WaitTimeout([found.id]) from None

    async def _fetch_settled(self, ids: Sequence[UUID], within_s: float) -> Sequence[Action]:
        return await self._run(operations.wait_any(ids, timeout_s=within_s, retry_timeout_s=self._retry_timeout_s))

    async def wait(self, ids: Sequence[UUID | str], *, timeout_s: float | None = None) -> list[Action]:
        waiting = operations.wait(ids, timeout_s=timeout_s, retry_timeout_s=self._retry_timeout_s)
        return await self._run(with_timeout(waiting, timeout_s))

    async def as_completed(self, ids: Sequence[UUID | str], *, timeout_s: float | None = None) -> AsyncIterator[Action]:
        ends_at = _deadline(timeout_s)
        pending = dict.fromkeys(map(operations.parse_action_id, ids))
        while pending:
            left = _remaining_s(ends_at)
            waiting = operations.wait_any(list(pending), timeout_s=left, retry_timeout_s=self._retry_timeout_s)
            for action in await self._run(with_timeout(waiting, left)):
                pending.pop(action.id)
                yield action

    async def get(self, id: UUID, *, wait_s: float = 0.0) -> Action:
        return await self._run(operations.get(id, wait_s=wait_s, retry_timeout_s=self._retry_timeout_s))

    async def trace(self, id: UUID) -> ActionTrace:
        return await self._run(operations.trace(id, retry_timeout_s=self._retry_timeout_s))

    async def explain(self, id: UUID) -> ActionExplanation:
        return await self._run(operations.explain(id, retry_timeout_s=self._retry_timeout_s))

    async def list(
        self, *, task: str | None = None, trajectory: str | None = None, state: str | None = None
    ) -> AsyncIterator[Action]:
        query = _query_params(task=task, trajectory=trajectory, state=state)
        while True:
            page = await self._run(operations.list_actions(query, retry_timeout_s=self._retry_timeout_s))
            for action in page.items:
                yield action
            if page.next_cursor is None:
                return
            query["cursor"] = page.next_cursor

    async def cancel(self, id: UUID) -> Action:
        return await self._run(operations.cancel(id, retry_timeout_s=self._retry_timeout_s))

    def stream_logs(self, id: UUID) -> AsyncIterator[OutputEvent]:
        return output_streams.stream_output_async(self._channel.http, id, retry_timeout_s=self._retry_timeout_s)

    async def send_input(self, id: UUID, content: bytes | str, *, end: bool = False, offset: int | None = None) -> int:
        return await self._run(
            output_streams.send_input(id, content, end=end, offset=offset, retry_timeout_s=self._retry_timeout_s)
        )

    async def put_files(self, task: str, trajectory: str, files: Mapping[str, bytes | str]) -> None:
        operations.expect_ok(await self.run(file_action(task, trajectory, files=files)))

    async def get_files(self, task: str, trajectory: str, paths: Sequence[str]) -> dict[str, bytes]:
        action = await self.run(file_action(task, trajectory, fetch=paths))
        return operations.fetched_files(operations.expect_ok(action))

    async def end_trajectory(self, task: str, trajectory: str) -> None:
        await self._run(operations.end_trajectory(task, trajectory, retry_timeout_s=self._retry_timeout_s))

    async def create_environment(self, request: CreateEnvironmentRequest) -> EnvironmentInfo:
        return await self._run(operations.create_environment(request, retry_timeout_s=self._retry_timeout_s))

    async def environment(self, id: UUID) -> EnvironmentInfo:
        return await self._run(operations.get_environment(id, retry_timeout_s=self._retry_timeout_s))

    async def environments(
        self, *, task: str | None = None, trajectory: str | None = None, state: str | None = None
    ) -> builtins.list[EnvironmentInfo]:
        query = _query_params(task=task, trajectory=trajectory, state=state)
        return await self._run(operations.list_environments(query, retry_timeout_s=self._retry_timeout_s))

    async def end_environment(self, id: UUID) -> None:
        await self._run(operations.end_environment(id, retry_timeout_s=self._retry_timeout_s))

    async def _run(self, operation: Operation[Value]) -> Value:
        reply: SdkResponse | None = None
        while True:
            try:
                step = operation.send(reply)
            except StopIteration as end:
                value: Value = end.value
                return value
            if isinstance(step, RetryDelay):
                await asyncio.sleep(step.seconds)
                reply = None
            else:
                reply = await send_async(self._channel.http, step)


def _to_action(action: SubmitActionRequest | None, options: ExecOptions) -> SubmitActionRequest:
    if action is not None and options:
        raise TypeError("give an action or options, not both")
    return action if action is not None else exec_action(**options)


def _query_params(**given: str | None) -> dict[str, str | int]:
    return {name: value for name, value in given.items() if value is not None}


def _deadline(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else time.monotonic() + timeout_s


def _remaining_s(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
