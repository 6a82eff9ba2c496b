"""Many actions in few requests, as operations: those that start each by itself, and those that start together."""

from collections.abc import Generator, Iterable, Sequence
from uuid import UUID, uuid4

from pydantic import ValidationError

from arl_tangram.operations import (
    BATCH,
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    RETRY_STATUS,
    BatchRefused,
    Call,
    Operation,
    Pause,
    Reply,
    answered,
)
from arl_tangram.options import failed_validation
from arl_wire.actions import SubmitAction
from arl_wire.batches import BatchAccepted, BatchItem, SubmitBatch
from arl_wire.errors import TangramError, error_from

__all__ = ["submit_gang", "submit_many"]

BATCH_BYTES = 32 << 20
"""Half of what a gateway takes."""


def submit_many(actions: Sequence[SubmitAction], *, patience_s: float) -> Operation[list[UUID]]:
    """Ids in the order of `actions`. Raises `BatchRefused` if any was refused; the others run."""
    accepted: dict[int, UUID] = {}
    refused: dict[int, TangramError] = {}
    for start, end in _batches(actions):
        batch = SubmitBatch(actions=list(actions[start:end]))
        try:
            items = yield from _submit_batch(batch, patience_s)
        except TangramError as error:
            if not accepted:
                raise
            # Or nobody would know the ids of those that run.
            refused |= dict.fromkeys(range(start, len(actions)), error)
            break
        for index, item in enumerate(items, start):
            if item.problem is not None:
                refused[index] = error_from(item.problem)
            elif item.id is not None:
                accepted[index] = item.id
    if refused:
        raise BatchRefused(accepted, refused)
    return [accepted[index] for index in range(len(actions))]


def _batches(actions: Sequence[SubmitAction]) -> Iterable[tuple[int, int]]:
    """Where each begins and ends: as many as one request may have, in number and in bytes."""
    start = size = 0
    for index, action in enumerate(actions):
        large = _bytes(action)
        if index > start and (index - start == BATCH or size + large > BATCH_BYTES):
            yield start, index
            start, size = index, 0
        size += large
    if start < len(actions):
        yield start, len(actions)


def _bytes(action: SubmitAction) -> int:
    """About, in JSON, of what can be large. Files are in base64 there."""
    texts = (action.source or "", action.command or "", action.stdin, *(action.argv or ()), *action.env.values())
    items = sum(item.characters for item in action.items)
    return 1000 + 2 * (sum(map(len, texts)) + items) + sum(4 * len(content) // 3 for content in action.files.values())


def submit_gang(actions: Sequence[SubmitAction], *, patience_s: float) -> Operation[list[UUID]]:
    """Ids in the order of `actions`. Raises `BatchRefused`, and then none of them runs."""
    try:
        gang = SubmitBatch(actions=list(actions), gang=True)
    except ValidationError as error:
        raise failed_validation(error) from None
    items = yield from _submit_batch(gang, patience_s)
    refused = {at: error_from(item.problem) for at, item in enumerate(items) if item.problem is not None}
    if refused:
        raise BatchRefused({}, refused)
    return [item.id for item in items if item.id is not None]


def _submit_batch(batch: SubmitBatch, patience_s: float) -> Generator[Call | Pause, Reply | None, list[BatchItem]]:
    """Sent again under the same key while any item's answer is to come back later; accepted ones stay what they are."""
    call = Call(
        method="POST",
        path="/v1/actions:batch",
        body=batch,
        headers={"idempotency-key": uuid4().hex},
    )
    waited, pause = 0.0, FIRST_PAUSE_S
    while True:
        items = BatchAccepted.model_validate_json((yield from answered(call, patience_s))).items
        later = any(item.problem is not None and item.problem.status in RETRY_STATUS for item in items)
        if not later or waited >= patience_s:
            return items
        asked = [item.problem.retry_after_s or 0 for item in items if item.problem is not None]
        seconds = max(pause, *asked)
        yield Pause(seconds)
        waited += seconds
        pause = min(pause * 2, LONGEST_PAUSE_S)
