"""The asynchronous client `AsyncTangram`. It has the same methods as `Tangram`."""

import asyncio
import builtins
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack
from uuid import UUID, uuid4

from arl_tangram import batches, operations
from arl_tangram.batches import ActionInput, ActionWindow, to_action, to_actions
from arl_tangram.environment_handles import AsyncEnvironment, PendingEnvironment
from arl_tangram.operations import BatchRefused, Operation, RetryDelay, SdkResponse, WaitTimeout
from arl_tangram.options import (
    EnvironmentOptions,
    ExecOptions,
    Network,
    environment_request,
    file_action,
    validate_request,
)
from arl_tangram.resources import environment_operations, output_streams
from arl_tangram.resources.administration import AsyncAdminMethods
from arl_tangram.resources.endpoints import AsyncEndpointMethods
from arl_tangram.resources.files import AsyncFileMethods
from arl_tangram.resources.output_streams import OutputDecoder, OutputEvent
from arl_tangram.resources.queues import AsyncQueueMethods
from arl_tangram.resources.reward_services import AsyncRewardServiceMethods
from arl_tangram.resources.steps import AsyncStepMethods
from arl_tangram.timeouts import CANCEL_TIMEOUT_S, RETRY_TIMEOUT_S, deadline, remaining_s, with_timeout
from arl_tangram.transport.connection import resolve_connection
from arl_tangram.transport.http_channels import AsyncHttpChannel
from arl_tangram.transport.http_requests import send_async
from arl_wire.actions.action import Action, SubmitActionRequest
from arl_wire.actions.explanations import ActionExplanation
from arl_wire.actions.traces import ActionTrace
from arl_wire.environments.environment import CreateEnvironmentRequest, EnvironmentInfo
from arl_wire.environments.network import UpdateEnvironmentRequest
from arl_wire.errors import TangramError, Unavailable

__all__ = ["AsyncTangram"]

Value = TypeVar("Value")
MAX_DEDICATED_WAITS = 512
"""Runs of one client that wait on a connection each; further runs share one request."""


class AsyncTangram(
    AsyncFileMethods,
    AsyncRewardServiceMethods,
    AsyncEndpointMethods,
    AsyncQueueMethods,
    AsyncStepMethods,
    AsyncAdminMethods,
):
    """The asynchronous form of `Tangram`, for any event loop."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        cell: int | None = None,
        retry_timeout_s: float = RETRY_TIMEOUT_S,
    ) -> None:
        connection = resolve_connection(url, api_key, cell=cell)
        self._channel, self._url = AsyncHttpChannel(connection), connection.url
        self._retry_timeout_s = retry_timeout_s
        self._cleanups: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections of this client, once cancelled runs are cancelled at the gateway."""
        if self._cleanups:
            await asyncio.wait(self._cleanups)
        await self._channel.close()

    async def submit(self, action: SubmitActionRequest | None = None, /, **options: Unpack[ExecOptions]) -> Action:
        """Submit an action. When this returns, the action is durable and will settle exactly once."""
        return await self._run(
            operations.submit(to_action(action, options), wait_s=0, retry_timeout_s=self._retry_timeout_s)
        )

    async def submit_many(self, actions: Sequence[SubmitActionRequest]) -> list[UUID]:
        """Submit actions and return their ids in order. Raises `BatchRefused` if any was refused; the others run."""
        return await self._run(batches.submit_many(actions, retry_timeout_s=self._retry_timeout_s))

    async def submit_gang(self, actions: Sequence[SubmitActionRequest]) -> list[UUID]:
        """Submit a gang and return its ids in order. Raises `BatchRefused` if any was refused; then none runs."""
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
        wanted, key = to_action(action, options), uuid4().hex
        running = (
            self._run_with_shared_wait
            if self._channel.dedicated_waits >= MAX_DEDICATED_WAITS
            else self._run_with_dedicated_wait
        )
        try:
            return await running(wanted, key, wait_timeout_s)
        except asyncio.CancelledError:
            await self._clean_up(operations.cancel_submitted(wanted, retry_timeout_s=CANCEL_TIMEOUT_S, key=key))
            raise

    async def _run_with_dedicated_wait(self, action: SubmitActionRequest, key: str, timeout_s: float | None) -> Action:
        waiting = operations.run(action, timeout_s=timeout_s, retry_timeout_s=self._retry_timeout_s, key=key)
        self._channel.dedicated_waits += 1
        try:
            return await self._run(with_timeout(waiting, timeout_s))
        finally:
            self._channel.dedicated_waits -= 1

    async def _run_with_shared_wait(self, action: SubmitActionRequest, key: str, timeout_s: float | None) -> Action:
        ends_at = deadline(timeout_s)
        submitting = operations.submit(action, wait_s=0, retry_timeout_s=self._retry_timeout_s, key=key)
        found = await self._run(with_timeout(submitting, timeout_s))
        if found.settled_at is not None:
            return found
        try:
            async with asyncio.timeout(remaining_s(ends_at)):
                return await self._channel.shared_wait(self._fetch_settled).wait_settled(found.id)
        except TimeoutError:
            raise WaitTimeout([found.id]) from None

    async def _fetch_settled(self, ids: Sequence[UUID], within_s: float) -> Sequence[Action]:
        return await self._run(operations.wait_any(ids, timeout_s=within_s, retry_timeout_s=self._retry_timeout_s))

    async def run_many(
        self,
        actions: Sequence[ActionInput],
        *,
        wait_timeout_s: float | None = None,
        **options: Unpack[ExecOptions],
    ) -> builtins.list[Action]:
        """Submit actions, wait for all of them and return them in order.

        Args:
            actions: Requests, or options such as `{"argv": ["true"]}`.
            wait_timeout_s: Maximum seconds to wait for the outcomes. None means no limit.
            options: Options that all actions share. An action's own options take precedence.

        Raises:
            BatchRefused: At least one action was refused; the others run.
            WaitTimeout: Not all actions have settled in time; they continue.
        """
        ids = await self.submit_many(to_actions(actions, options))
        return await self.wait(ids, timeout_s=wait_timeout_s)

    async def map(
        self, actions: Iterable[ActionInput], *, max_in_flight: int = 1000, **options: Unpack[ExecOptions]
    ) -> AsyncIterator[Action]:
        """Run any number of actions and yield them in order, each as soon as it and all before it have settled.

        `actions` is read lazily: at most `max_in_flight` actions are submitted and not yielded yet. Leaving the loop
        early leaves the submitted actions running. If an action is refused or reading `actions` fails, the submitted
        actions are yielded first, then the error is raised. `run_many` documents the other arguments.
        """
        window = ActionWindow(actions, options, max_in_flight)
        while True:
            if batch := window.next_batch():
                try:
                    window.add(await self.submit_many(batch))
                except BatchRefused as error:
                    window.refuse(error, len(batch))
            if not window.pending:
                break
            settling = operations.wait_any(window.pending, timeout_s=None, retry_timeout_s=self._retry_timeout_s)
            for action in await self._run(settling):
                window.settle(action)
            for action in window.ready():
                yield action
        window.finish()

    async def wait(self, ids: Sequence[UUID | str], *, timeout_s: float | None = None) -> list[Action]:
        """Wait until all actions have settled and return them in the order of `ids`. Raises `WaitTimeout`."""
        waiting = operations.wait(ids, timeout_s=timeout_s, retry_timeout_s=self._retry_timeout_s)
        return await self._run(with_timeout(waiting, timeout_s))

    async def as_completed(self, ids: Sequence[UUID | str], *, timeout_s: float | None = None) -> AsyncIterator[Action]:
        """Yield each action once, as it settles. Raises `WaitTimeout`."""
        ends_at = deadline(timeout_s)
        pending = dict.fromkeys(map(operations.parse_action_id, ids))
        while pending:
            left = remaining_s(ends_at)
            waiting = operations.wait_any(list(pending), timeout_s=left, retry_timeout_s=self._retry_timeout_s)
            for action in await self._run(with_timeout(waiting, left)):
                pending.pop(action.id)
                yield action

    async def get(self, id: UUID, *, wait_s: float = 0.0) -> Action:
        """Return an action. If it has not settled, wait up to `wait_s` seconds, at most 55."""
        return await self._run(operations.get(id, wait_s=wait_s, retry_timeout_s=self._retry_timeout_s))

    async def trace(self, id: UUID) -> ActionTrace:
        """Return the timeline of an action in any state."""
        return await self._run(operations.trace(id, retry_timeout_s=self._retry_timeout_s))

    async def explain(self, id: UUID) -> ActionExplanation:
        """Return why an action waits, or which resources it has or had and when."""
        return await self._run(operations.explain(id, retry_timeout_s=self._retry_timeout_s))

    async def list(
        self, *, task: str | None = None, trajectory: str | None = None, state: str | None = None
    ) -> AsyncIterator[Action]:
        """Iterate over actions, newest first, without results, page by page."""
        query = operations.query_params(task=task, trajectory=trajectory, state=state)
        while True:
            page = await self._run(operations.list_actions(query, retry_timeout_s=self._retry_timeout_s))
            for action in page.items:
                yield action
            if page.next_cursor is None:
                return
            query["cursor"] = page.next_cursor

    async def cancel(self, id: UUID) -> Action:
        """Request the cancellation of an action. A settled action is returned unchanged."""
        return await self._run(operations.cancel(id, retry_timeout_s=self._retry_timeout_s))

    def stream_logs(self, id: UUID) -> AsyncIterator[OutputEvent]:
        """Stream the output of an action and its end. A broken connection is reopened, and no event is repeated."""
        return output_streams.stream_output_async(self._channel.http, id, retry_timeout_s=self._retry_timeout_s)

    async def follow(self, id: UUID, *, stream: Literal["stdout", "stderr"] | None = None) -> AsyncIterator[str]:
        """Yield the output of an action as text, live, until it ends. `stream` selects one stream; None means both.

        After an infrastructure error, the output of the next attempt follows that of the first.
        """
        decoder = OutputDecoder(stream)
        async for event in self.stream_logs(id):
            if text := decoder.decode(event):
                yield text

    async def send_input(self, id: UUID, content: bytes | str, *, end: bool = False, offset: int | None = None) -> int:
        """Send input to an action that was submitted with `stdin_open`. Waits until it runs and sends exactly once.

        Returns the `offset` of the next input. `end`: no input follows.
        Raises `Conflict` if the action or its input has ended.
        """
        return await self._run(
            output_streams.send_input(id, content, end=end, offset=offset, retry_timeout_s=self._retry_timeout_s)
        )

    async def put_files(self, task: str, trajectory: str, files: Mapping[str, bytes | str]) -> None:
        """Write files into a trajectory's environment, and create the environment if necessary."""
        operations.expect_ok(await self.run(file_action(task, trajectory, files=files)))

    async def get_files(self, task: str, trajectory: str, paths: Sequence[str]) -> dict[str, bytes]:
        """Read files of a trajectory's environment. Files that do not exist are left out."""
        action = await self.run(file_action(task, trajectory, fetch=paths))
        return operations.fetched_files(operations.expect_ok(action))

    async def end_trajectory(self, task: str, trajectory: str) -> None:
        """Cancel the trajectory's remaining actions and end its environment."""
        await self._run(operations.end_trajectory(task, trajectory, retry_timeout_s=self._retry_timeout_s))

    def environment(
        self, *, wait_timeout_s: float | None = None, **options: Unpack[EnvironmentOptions]
    ) -> PendingEnvironment:
        """Create a persistent environment with `await` or `async with`. It ends with the `async with` block.

        An environment occupies memory and disk until it ends, but cores only while an action runs in it. Raises
        `Unavailable` and cancels the creation if the environment does not exist within `wait_timeout_s` seconds.
        """
        return PendingEnvironment(self._create_environment(environment_request(options), wait_timeout_s))

    async def get_environment(self, id: UUID) -> AsyncEnvironment:
        """Return an existing environment."""
        found = await self._run(environment_operations.get_environment(id, retry_timeout_s=self._retry_timeout_s))
        return AsyncEnvironment(self, found)

    async def environments(
        self, *, task: str | None = None, trajectory: str | None = None, state: str | None = None
    ) -> builtins.list[EnvironmentInfo]:
        """List all environments, newest first. Ended environments are included unless `state` is `live`."""
        query = operations.query_params(task=task, trajectory=trajectory, state=state)
        return await self._run(environment_operations.list_environments(query, retry_timeout_s=self._retry_timeout_s))

    async def update_environment(self, id: UUID, *, network: Network) -> EnvironmentInfo:
        """Change the network of a live environment, also for a running program. It applies within about a second."""
        request = validate_request(UpdateEnvironmentRequest, {"network": network})
        return await self._run(
            environment_operations.update_environment(id, request, retry_timeout_s=self._retry_timeout_s)
        )

    async def end_environment(self, id: UUID) -> None:
        """End an environment and delete its content. Actions that wait for it are cancelled."""
        await self._run(environment_operations.end_environment(id, retry_timeout_s=self._retry_timeout_s))

    async def _create_environment(
        self, request: CreateEnvironmentRequest, wait_timeout_s: float | None
    ) -> AsyncEnvironment:
        key = uuid4().hex
        creating = environment_operations.create_environment(request, retry_timeout_s=self._retry_timeout_s, key=key)
        try:
            return AsyncEnvironment(self, await self._run(with_timeout(creating, wait_timeout_s)))
        except (asyncio.CancelledError, Unavailable, TimeoutError):  # after a refusal there is none
            await self._clean_up(
                environment_operations.discard_environment(request, retry_timeout_s=CANCEL_TIMEOUT_S, key=key)
            )
            raise

    async def _clean_up(self, operation: Operation[Any]) -> None:
        """Run the operation to its end, also if the awaiting task is cancelled again, as anyio does at each await."""

        async def run() -> None:
            with suppress(TangramError, TimeoutError):
                async with asyncio.timeout(CANCEL_TIMEOUT_S):
                    await self._run(operation)

        task = asyncio.create_task(run())
        self._cleanups.add(task)
        task.add_done_callback(self._cleanups.discard)
        await asyncio.shield(task)

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
