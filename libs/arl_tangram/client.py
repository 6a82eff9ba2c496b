"""The blocking client `Tangram`."""

import builtins
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Literal, Self, TypeVar, Unpack
from uuid import UUID, uuid4

from arl_tangram import batches, operations
from arl_tangram.batches import ActionInput, ActionWindow, to_action, to_actions
from arl_tangram.environment_handles import Environment
from arl_tangram.operations import BatchRefused, Operation, RetryDelay, SdkResponse
from arl_tangram.options import (
    EnvironmentOptions,
    ExecOptions,
    Network,
    environment_request,
    file_action,
    validate_request,
)
from arl_tangram.resources import environment_operations, output_streams
from arl_tangram.resources.administration import AdminMethods
from arl_tangram.resources.endpoints import EndpointMethods
from arl_tangram.resources.files import FileMethods
from arl_tangram.resources.output_streams import OutputDecoder, OutputEvent
from arl_tangram.resources.queues import QueueMethods
from arl_tangram.resources.reward_services import RewardServiceMethods
from arl_tangram.resources.steps import StepMethods
from arl_tangram.timeouts import CANCEL_TIMEOUT_S, RETRY_TIMEOUT_S, deadline, remaining_s, with_timeout
from arl_tangram.transport.connection import resolve_connection
from arl_tangram.transport.http_channels import SyncHttpChannel
from arl_tangram.transport.http_requests import send
from arl_wire.actions.action import Action, SubmitActionRequest
from arl_wire.actions.explanations import ActionExplanation
from arl_wire.actions.traces import ActionTrace
from arl_wire.environments.environment import EnvironmentInfo
from arl_wire.environments.network import UpdateEnvironmentRequest
from arl_wire.errors import TangramError, Unavailable

__all__ = ["Tangram"]

Value = TypeVar("Value")


class Tangram(FileMethods, RewardServiceMethods, EndpointMethods, QueueMethods, StepMethods, AdminMethods):
    """A blocking client, safe to share between threads and to use after a fork.

    Without arguments it finds the system of this machine: TANGRAM_URL and TANGRAM_API_KEY, else the state that
    `tangram up` wrote. Calls are retried for `retry_timeout_s` seconds while services restart. A router of several
    cells forwards all requests to `cell`; without it (and TANGRAM_CELL_HEADER), the router chooses.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        cell: int | None = None,
        retry_timeout_s: float = RETRY_TIMEOUT_S,
    ) -> None:
        connection = resolve_connection(url, api_key, cell=cell)
        self._channel, self._url = SyncHttpChannel(connection), connection.url
        self._retry_timeout_s = retry_timeout_s

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections of this client."""
        self._channel.close()

    def submit(self, action: SubmitActionRequest | None = None, /, **options: Unpack[ExecOptions]) -> Action:
        """Submit an action. When this returns, the action is durable and will settle exactly once."""
        return self._run(operations.submit(to_action(action, options), wait_s=0, retry_timeout_s=self._retry_timeout_s))

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
            to_action(action, options), timeout_s=wait_timeout_s, retry_timeout_s=self._retry_timeout_s
        )
        return self._run(with_timeout(waiting, wait_timeout_s))

    def run_many(
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
        ids = self.submit_many(to_actions(actions, options))
        return self.wait(ids, timeout_s=wait_timeout_s)

    def map(
        self, actions: Iterable[ActionInput], *, max_in_flight: int = 1000, **options: Unpack[ExecOptions]
    ) -> Iterator[Action]:
        """Run any number of actions and yield them in order, each as soon as it and all before it have settled.

        `actions` is read lazily: at most `max_in_flight` actions are submitted and not yielded yet. Leaving the loop
        early leaves the submitted actions running. If an action is refused or reading `actions` fails, the submitted
        actions are yielded first, then the error is raised. `run_many` documents the other arguments.
        """
        window = ActionWindow(actions, options, max_in_flight)
        while True:
            if batch := window.next_batch():
                try:
                    window.add(self.submit_many(batch))
                except BatchRefused as error:
                    window.refuse(error, len(batch))
            if not window.pending:
                break
            settling = operations.wait_any(window.pending, timeout_s=None, retry_timeout_s=self._retry_timeout_s)
            for action in self._run(settling):
                window.settle(action)
            yield from window.ready()
        window.finish()

    def wait(self, ids: Sequence[UUID | str], *, timeout_s: float | None = None) -> list[Action]:
        """Wait until all actions have settled and return them in the order of `ids`. Raises `WaitTimeout`."""
        return self._run(
            with_timeout(operations.wait(ids, timeout_s=timeout_s, retry_timeout_s=self._retry_timeout_s), timeout_s)
        )

    def as_completed(self, ids: Sequence[UUID | str], *, timeout_s: float | None = None) -> Iterator[Action]:
        """Yield each action once, as it settles. Raises `WaitTimeout`."""
        ends_at = deadline(timeout_s)
        pending = dict.fromkeys(map(operations.parse_action_id, ids))
        while pending:
            left = remaining_s(ends_at)
            waiting = operations.wait_any(list(pending), timeout_s=left, retry_timeout_s=self._retry_timeout_s)
            for action in self._run(with_timeout(waiting, left)):
                pending.pop(action.id)
                yield action

    def get(self, id: UUID, *, wait_s: float = 0.0) -> Action:
        """Return an action. If it has not settled, wait up to `wait_s` seconds, at most 55."""
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
        query = operations.query_params(task=task, trajectory=trajectory, state=state)
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

    def follow(self, id: UUID, *, stream: Literal["stdout", "stderr"] | None = None) -> Iterator[str]:
        """Yield the output of an action as text, live, until it ends. `stream` selects one stream; None means both.

        After an infrastructure error, the output of the next attempt follows that of the first.
        """
        decoder = OutputDecoder(stream)
        for event in self.stream_logs(id):
            if text := decoder.decode(event):
                yield text

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

    def environment(self, *, wait_timeout_s: float | None = None, **options: Unpack[EnvironmentOptions]) -> Environment:
        """Create a persistent environment and return when it exists. In a `with` block, it ends with the block.

        An environment occupies memory and disk until it ends, but cores only while an action runs in it. Raises
        `Unavailable` and cancels the creation if the environment does not exist within `wait_timeout_s` seconds.
        """
        request, key = environment_request(options), uuid4().hex
        creating = environment_operations.create_environment(request, retry_timeout_s=self._retry_timeout_s, key=key)
        try:
            return Environment(self, self._run(with_timeout(creating, wait_timeout_s)))
        except (KeyboardInterrupt, Unavailable, TimeoutError):  # after a refusal there is none
            with suppress(TangramError):
                self._run(
                    environment_operations.discard_environment(request, retry_timeout_s=CANCEL_TIMEOUT_S, key=key)
                )
            raise

    def get_environment(self, id: UUID) -> Environment:
        """Return an existing environment."""
        return Environment(
            self, self._run(environment_operations.get_environment(id, retry_timeout_s=self._retry_timeout_s))
        )

    def environments(
        self, *, task: str | None = None, trajectory: str | None = None, state: str | None = None
    ) -> builtins.list[EnvironmentInfo]:
        """List all environments, newest first. Ended environments are included unless `state` is `live`."""
        query = operations.query_params(task=task, trajectory=trajectory, state=state)
        return self._run(environment_operations.list_environments(query, retry_timeout_s=self._retry_timeout_s))

    def update_environment(self, id: UUID, *, network: Network) -> EnvironmentInfo:
        """Change the network of a live environment, also for a running program. It applies within about a second."""
        request = validate_request(UpdateEnvironmentRequest, {"network": network})
        return self._run(environment_operations.update_environment(id, request, retry_timeout_s=self._retry_timeout_s))

    def end_environment(self, id: UUID) -> None:
        """End an environment and delete its content. Actions that wait for it are cancelled."""
        self._run(environment_operations.end_environment(id, retry_timeout_s=self._retry_timeout_s))

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
