"""Many actions at once: batches, gangs, and the order of their results."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import cast
from uuid import UUID, uuid4

from pydantic import ValidationError

from arl_tangram.operations import (
    FIRST_RETRY_DELAY_S,
    MAX_BATCH_ITEMS,
    MAX_RETRY_DELAY_S,
    RETRYABLE_STATUSES,
    BatchRefused,
    Operation,
    RetryDelay,
    SdkRequest,
    SdkResponse,
    call_with_retry,
)
from arl_tangram.options import ExecOptions, exec_action, invalid_field, to_validation_failed
from arl_wire.actions.action import Action, SubmitActionRequest
from arl_wire.actions.batches import BatchItemResult, SubmitBatchRequest, SubmitBatchResponse
from arl_wire.errors import TangramError, Unavailable, error_from_problem

__all__ = ["ActionInput", "ActionWindow", "submit_gang", "submit_many", "to_action", "to_actions"]

MAX_BATCH_BYTES = 32 << 20
"""Maximum estimated bytes of one request, half of the gateway's limit."""
ActionInput = SubmitActionRequest | ExecOptions
"""A request, or the options of `exec_action`."""


class ActionWindow:
    """The window of `map`: actions that were submitted and not yielded yet, in order.

    A failure of the input or of a submission is kept until every submitted action was yielded.
    """

    def __init__(self, actions: Iterable[ActionInput], shared: ExecOptions, max_in_flight: int) -> None:
        if max_in_flight < 1:
            raise invalid_field("max_in_flight", f"must be at least 1, got {max_in_flight}")
        self._input = iter(actions)
        self._shared = shared
        self._max_in_flight = max_in_flight
        self._actions: dict[UUID, Action | None] = {}
        self._read_count = 0
        self._failure: BaseException | None = None

    @property
    def pending(self) -> list[UUID]:
        """Ids of the actions that have not settled."""
        return [id for id, action in self._actions.items() if action is None]

    def next_batch(self) -> list[SubmitActionRequest]:
        """Read as many actions as fit into the window. After a failure, return none."""
        batch: list[SubmitActionRequest] = []
        while self._failure is None and len(self._actions) + len(batch) < self._max_in_flight:
            try:
                batch += to_actions([next(self._input)], self._shared)
            except StopIteration:
                break
            except Exception as error:  # noqa: BLE001 - raised by `finish`
                self._failure = error
        self._read_count += len(batch)
        return batch

    def add(self, ids: Iterable[UUID]) -> None:
        """Append submitted actions."""
        self._actions |= dict.fromkeys(ids)

    def refuse(self, error: BatchRefused, size: int) -> None:
        """Append the accepted actions of a batch of `size`, and keep the error with the indexes of the input."""
        first = self._read_count - size
        self.add(id for _, id in sorted(error.accepted.items()))
        self._failure = BatchRefused(
            {first + at: id for at, id in error.accepted.items()},
            {first + at: each for at, each in error.refused.items()},
            unknown=(first + at for at in error.unknown),
        )

    def settle(self, action: Action) -> None:
        """Store the result of an action."""
        self._actions[action.id] = action

    def ready(self) -> Iterator[Action]:
        """Remove and yield the settled actions before the first unsettled one."""
        for id, action in list(self._actions.items()):
            if action is None:
                return
            del self._actions[id]
            yield action

    def finish(self) -> None:
        """Raise the failure, if there was one."""
        if self._failure is not None:
            raise self._failure


def to_action(action: SubmitActionRequest | None, options: ExecOptions) -> SubmitActionRequest:
    """Return the request, or the one that the options describe. Raises `TypeError` if both are given."""
    if action is not None and options:
        raise TypeError("give an action or options, not both")
    return action if action is not None else exec_action(**options)


def to_actions(actions: Iterable[ActionInput], shared: ExecOptions) -> list[SubmitActionRequest]:
    """Return the requests. `shared` options apply to options, not to complete requests."""
    return [
        each if isinstance(each, SubmitActionRequest) else exec_action(**cast("ExecOptions", {**shared, **each}))
        for each in actions
    ]


def submit_many(actions: Sequence[SubmitActionRequest], *, retry_timeout_s: float) -> Operation[list[UUID]]:
    """Submit actions and return their ids in order. Raises `BatchRefused` if any was refused; the others run."""
    accepted: dict[int, UUID] = {}
    refused: dict[int, TangramError] = {}
    unknown: range | tuple[()] = ()
    for start, end in _split_batches(actions):
        batch = SubmitBatchRequest(actions=list(actions[start:end]))
        try:
            items = yield from _submit_batch(batch, retry_timeout_s)
        except TangramError as error:
            if not accepted:
                raise
            # Raising the error would lose the ids of the accepted actions, which run.
            refused |= dict.fromkeys(range(start, len(actions)), error)
            unknown = range(start, end) if isinstance(error, Unavailable) else ()
            break
        for index, item in enumerate(items, start):
            if item.problem is not None:
                refused[index] = error_from_problem(item.problem)
            elif item.id is not None:
                accepted[index] = item.id
    if refused:
        raise BatchRefused(accepted, refused, unknown=unknown)
    return [accepted[index] for index in range(len(actions))]


def _split_batches(actions: Sequence[SubmitActionRequest]) -> Iterable[tuple[int, int]]:
    """Yield start and end of each batch, within the limits of one request on items and bytes."""
    start = size = 0
    for index, action in enumerate(actions):
        large = _estimate_bytes(action)
        if index > start and (index - start == MAX_BATCH_ITEMS or size + large > MAX_BATCH_BYTES):
            yield start, index
            start, size = index, 0
        size += large
    if start < len(actions):
        yield start, len(actions)


def _estimate_bytes(action: SubmitActionRequest) -> int:
    """Estimate the JSON size from the fields that can be large. Files are encoded in base64."""
    texts = (action.source or "", action.command or "", action.stdin, *(action.argv or ()), *action.env.values())
    items = sum(item.characters for item in action.items)
    return 1000 + 2 * (sum(map(len, texts)) + items) + sum(4 * len(content) // 3 for content in action.files.values())


def submit_gang(actions: Sequence[SubmitActionRequest], *, retry_timeout_s: float) -> Operation[list[UUID]]:
    """Submit a gang and return its ids in order. Raises `BatchRefused` if any was refused; then none runs."""
    try:
        gang = SubmitBatchRequest(actions=list(actions), gang=True)
    except ValidationError as error:
        raise to_validation_failed(error) from None
    items = yield from _submit_batch(gang, retry_timeout_s)
    refused = {at: error_from_problem(item.problem) for at, item in enumerate(items) if item.problem is not None}
    if refused:
        raise BatchRefused({}, refused)
    return [item.id for item in items if item.id is not None]


def _submit_batch(
    batch: SubmitBatchRequest, retry_timeout_s: float
) -> Generator[SdkRequest | RetryDelay, SdkResponse | None, list[BatchItemResult]]:
    """Send a batch again under the same idempotency key while an item has a retryable status. Accepted items stay."""
    call = SdkRequest(
        method="POST",
        path="/v1/actions:batch",
        body=batch,
        headers={"idempotency-key": uuid4().hex},
    )
    waited, pause = 0.0, FIRST_RETRY_DELAY_S
    while True:
        items = SubmitBatchResponse.model_validate_json((yield from call_with_retry(call, retry_timeout_s))).items
        later = any(item.problem is not None and item.problem.status in RETRYABLE_STATUSES for item in items)
        if not later or waited >= retry_timeout_s:
            return items
        asked = [item.problem.retry_after_s or 0 for item in items if item.problem is not None]
        seconds = max(pause, *asked)
        yield RetryDelay(seconds)
        waited += seconds
        pause = min(pause * 2, MAX_RETRY_DELAY_S)
