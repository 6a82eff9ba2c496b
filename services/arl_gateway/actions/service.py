"""Operations on actions: submit through admission, read rows, and wait without a query per waiter."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from uuid import UUID

from arl_gateway.actions import queries
from arl_gateway.actions.batch import item_problem
from arl_gateway.actions.views import action_etag, action_from_row, result_size
from arl_gateway.actions.waiters import ActionWaiters
from arl_gateway.http.auth import Caller
from arl_kit.batcher import Batcher
from arl_kit.failpoints import Failpoints
from arl_kit.service_client import ServiceClient
from arl_store.tx import PostgresStore
from arl_wire.actions.action import Action, ActionListResponse, SubmitActionRequest
from arl_wire.actions.batches import BatchItemResult, SubmitBatchResponse, WaitRequest, WaitResponse
from arl_wire.errors import BadRequest, FieldError, NotFound, TangramError, error_from_problem
from arl_wire.internal.admission import (
    AdmitItemResult,
    AdmitRequest,
    AdmitResponse,
    AffectedRowsResponse,
    CancelActionsRequest,
    CoalescedCall,
    EndTrajectoryRequest,
    SnapshotSource,
    SubmissionMetadata,
)

__all__ = ["ActionService", "AdmittedAction", "RequestTrace", "check_idempotency_key", "matches_etag"]

MAX_KEY_LENGTH = 255
MAX_TRACESTATE_LENGTH = 512
FIRST_CHUNK, READ_CHUNK = 4, 50
"""Number of results to read at once before their size is known, and afterwards."""
RESPONSE_BYTES = 16 << 20
POLL_S = 1.0
MAX_PENDING = 20_000
MAX_PENDING_BYTES = 256 << 20
"""Maximum size of the submissions that wait here, in bytes. Above it or above `MAX_PENDING`, submission returns 503."""


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """The trace context of a submission (W3C)."""

    parent: str | None = None
    state: str | None = None


@dataclass(frozen=True, slots=True)
class AdmittedAction:
    """A durable action.

    Waiters see an action that settles after wake-up number `wakes`. An earlier settlement needs a query.
    """

    id: UUID
    created: bool
    wakes: int = -1


class ActionService:
    """The operations on actions that routes share."""

    def __init__(
        self,
        store: PostgresStore,
        peers: ServiceClient,
        waiters: ActionWaiters,
        *,
        admission_url: str,
        failpoints: Failpoints | None = None,
    ) -> None:
        self._store = store
        self._peers = peers
        self._waiters = waiters
        self._admission_url = admission_url
        self._failpoints = failpoints or Failpoints()
        self._submits: Batcher[str, AdmittedAction] = Batcher(
            self._admit, max_batch=500, max_waiting=MAX_PENDING, max_waiting_weight=MAX_PENDING_BYTES
        )
        self._reads: Batcher[tuple[int, UUID], Action | None] = Batcher(
            self._read_many, max_batch=READ_CHUNK, max_waiting=MAX_PENDING
        )

    async def submit(
        self,
        action: SubmitActionRequest,
        caller: Caller,
        *,
        key: str | None,
        trace: RequestTrace,
        wait_s: float = 0.0,
        source_snapshot: SnapshotSource | None = None,
    ) -> Action:
        """Submit an action durably. Return it at once, or after it settles or `wait_s` have passed."""
        item = _admission_item(action, caller, check_idempotency_key(key), trace, source_snapshot=source_snapshot)
        return await self.wait_outcome(await self._submit_item(item), caller, wait_s=wait_s)

    async def admit(
        self,
        action: SubmitActionRequest,
        caller: Caller,
        *,
        trace: RequestTrace,
        item_origins: Sequence[CoalescedCall] = (),
        key: str | None = None,
        source_snapshot: SnapshotSource | None = None,
    ) -> AdmittedAction:
        """Submit an action durably. `item_origins` names the call of each item."""
        checked = check_idempotency_key(key)
        return await self._submit_item(
            _admission_item(action, caller, checked, trace, source_snapshot=source_snapshot, item_origins=item_origins)
        )

    async def wait_outcome(self, admitted: AdmittedAction, caller: Caller, *, wait_s: float) -> Action:
        """Return the action at once, or after it settles or `wait_s` have passed."""
        if wait_s > 0:
            # A new action wakes its watch when it settles. An action that already existed for the key may have settled
            # before.
            look = not admitted.created or self._waiters.wake_count != admitted.wakes
            with self._waiters.watch([admitted.id], check_now=look) as watch:
                await watch.wait_for_change(wait_s)
        return await self._read(admitted.id, caller)

    async def _submit_item(self, item: str) -> AdmittedAction:
        wakes = self._waiters.wake_count
        return replace(await self._submits.submit(item, weight=len(item)), wakes=wakes)

    async def submit_batch(
        self,
        actions: Sequence[SubmitActionRequest | TangramError],
        caller: Caller,
        *,
        key: str | None,
        trace: RequestTrace,
        gang: bool = False,
    ) -> SubmitBatchResponse:
        """Submit a batch. The idempotency key of an item is the batch's key and the item's index.

        Items that failed validation stay refused. A `gang` is submitted to admission in a separate request.
        """
        checked = check_idempotency_key(key)
        if gang and not any(isinstance(action, TangramError) for action in actions):
            return await self._submit_gang(actions, caller, key=checked, trace=trace)
        answers: dict[int, AdmittedAction | BaseException] = {}
        futures: dict[int, asyncio.Future[AdmittedAction]] = {}
        for index, action in enumerate(actions):
            if isinstance(action, TangramError):
                answers[index] = action
                continue
            item_key = f"{checked}:{index}" if checked is not None else None
            item = _admission_item(action, caller, item_key, trace)
            futures[index] = self._submits.enqueue(item, weight=len(item))
        admitted = await asyncio.gather(*futures.values(), return_exceptions=True)
        answers |= zip(futures, admitted, strict=True)
        return SubmitBatchResponse(items=[_batch_item(answers[index], index) for index in range(len(actions))])

    async def _submit_gang(
        self,
        actions: Sequence[SubmitActionRequest | TangramError],
        caller: Caller,
        *,
        key: str | None,
        trace: RequestTrace,
    ) -> SubmitBatchResponse:
        items = [
            _admission_item(
                action, caller, f"{key}:{index}" if key is not None else None, trace, gang_size=len(actions)
            )
            for index, action in enumerate(actions)
            if isinstance(action, SubmitActionRequest)
        ]
        answers = await self._call_admission(AdmitRequest.json_from_items(items, gang=True))
        return SubmitBatchResponse(items=[_batch_item(answer, index) for index, answer in enumerate(answers)])

    async def get(self, id: UUID, caller: Caller, *, wait_s: float = 0.0, known_etags: str | None = None) -> Action:
        """Return the action once it settles or `wait_s` have passed.

        If `known_etags` (`If-None-Match`) is given, return as soon as the action has another version.
        """
        if known_etags is not None:
            return await self._wait_for_change(id, caller, known_etags, wait_s)
        if wait_s <= 0:
            return await self._read(id, caller)
        with self._waiters.watch([id]) as watch:
            action = await self._read(id, caller)
            if action.settled_at is not None:
                return action
            await watch.wait_for_change(wait_s)
        return await self._read(id, caller)

    async def _wait_for_change(self, id: UUID, caller: Caller, known_etags: str, wait_s: float) -> Action:
        """Wait for another version. Settling wakes the waiter; other changes are found by one shared poll a second."""
        ends_at = time.monotonic() + wait_s
        with self._waiters.watch([id]) as watch:
            while True:
                action = await self._read(id, caller)
                left_s = ends_at - time.monotonic()
                if action.settled_at is not None or not matches_etag(action, known_etags) or left_s <= 0 or watch.ended:
                    return action
                await watch.wait_for_change(min(left_s, POLL_S))

    async def wait(self, request: WaitRequest, caller: Caller) -> WaitResponse:
        """Wait for any or all ids. Until the end only their states are read; results are read once."""
        ids = list(dict.fromkeys(request.ids))
        ends_at = time.monotonic() + request.timeout_s
        with self._waiters.watch(ids) as watch:
            states = await self._states(ids, caller)
            watch.mark_settled(id for id in ids if states.get(id, True))
            while watch.pending and not (request.until == "any" and len(watch.pending) < len(states)):
                if not await watch.wait_for_change(ends_at - time.monotonic()):
                    break
        settled, gone = await self._read_bounded([id for id in ids if id in states and id not in watch.pending], caller)
        states = {id: state for id, state in states.items() if id not in gone}
        answered = {action.id for action in settled}
        return WaitResponse(
            settled=settled,
            pending=[id for id in ids if id in states and id not in answered],
            unknown=[id for id in ids if id not in states],
        )

    async def _read_bounded(self, ids: Sequence[UUID], caller: Caller) -> tuple[list[Action], set[UUID]]:
        """Return the first actions up to a byte limit, and the ids removed meanwhile. The client asks again for the
        rest.
        """
        found: list[Action] = []
        gone: set[UUID] = set()
        size = start = 0
        count = FIRST_CHUNK
        while start < len(ids) and size <= RESPONSE_BYTES:
            chunk = ids[start : start + count]
            read = await asyncio.gather(*(self._reads.submit((caller.project_id, id)) for id in chunk))
            found += [action for action in read if action is not None]
            gone |= {id for id, action in zip(chunk, read, strict=True) if action is None}
            size += sum(result_size(action) for action in read if action is not None)
            start += len(chunk)
            # Estimate how many results fit from the average size of those read so far.
            count = max(1, min(READ_CHUNK, 4 * count, (RESPONSE_BYTES - size) * start // max(1, size)))
        return found, gone

    async def list(
        self,
        caller: Caller,
        *,
        task: str | None,
        trajectory: str | None,
        state: str | None,
        cursor: str | None,
        limit: int,
    ) -> ActionListResponse:
        """Return a page of the project's actions, newest first. Raises `BadRequest` for an invalid cursor."""
        async with self._store.read() as tx:
            rows = await queries.list_actions(
                tx,
                project_id=caller.project_id,
                task=task,
                trajectory=trajectory,
                state=state,
                before=_parse_cursor(cursor),
                limit=limit + 1,
            )
        items = [action_from_row(row) for row in rows[:limit]]
        return ActionListResponse(items=items, next_cursor=str(items[-1].id) if len(rows) > limit else None)

    async def cancel(self, id: UUID, caller: Caller) -> Action:
        """Request cancellation. If the action settled first, its result is kept and returned."""
        action = await self._read(id, caller)
        if action.settled_at is not None:
            return action
        body = CancelActionsRequest(project_id=caller.project_id, ids=[id])
        await self._peers.call(f"{self._admission_url}/internal/cancel", body, audience="admission")
        return await self._read(id, caller)

    async def end_trajectory(self, task: str, trajectory: str, caller: Caller) -> None:
        """Cancel a trajectory's actions and end its environment. Raises `NotFound` for an unknown trajectory."""
        body = EndTrajectoryRequest(project_id=caller.project_id, task=task, trajectory=trajectory)
        content = await self._peers.call(f"{self._admission_url}/internal/end-trajectory", body, audience="admission")
        if AffectedRowsResponse.model_validate_json(content).count == 0:
            page = await self.list(caller, task=task, trajectory=trajectory, state=None, cursor=None, limit=1)
            if not page.items:
                raise NotFound(f"trajectory {trajectory!r} of task {task!r} does not exist")

    async def drain(self) -> None:
        """Wait until all submissions have an answer."""
        await self._submits.drain()

    async def _read(self, id: UUID, caller: Caller) -> Action:
        action = await self._reads.submit((caller.project_id, id))
        if action is None:
            raise NotFound(f"action {id} does not exist in this project")
        return action

    async def _states(self, ids: Sequence[UUID], caller: Caller) -> dict[UUID, bool]:
        """Return whether each action is settled. Actions of other projects are omitted."""
        async with self._store.read() as tx:
            rows = await queries.states_by_id(tx, ids, project_id=caller.project_id)
        return {row.id: row.settled for row in rows}

    async def _read_many(self, wanted: Sequence[tuple[int, UUID]]) -> Sequence[Action | Exception | None]:
        """Read the actions of all concurrent readers in one query. Actions of other projects are treated as unknown."""
        async with self._store.read() as tx:
            rows = await queries.actions_by_id(tx, sorted({id for _, id in wanted}))
        found = {(row.project_id, row.id): action_from_row(row) for row in rows}
        return [found.get(key) for key in wanted]

    async def _admit(self, items: Sequence[str]) -> Sequence[AdmittedAction | Exception]:
        return await self._call_admission(AdmitRequest.json_from_items(items))

    async def _call_admission(self, request: str) -> Sequence[AdmittedAction | TangramError]:
        content = await self._peers.call(f"{self._admission_url}/internal/admit", request, audience="admission")
        self._failpoints.hit("gateway.after_admission_ack")
        answers = AdmitResponse.model_validate_json(content).items
        return [_admission_result(answer) for answer in answers]


def matches_etag(action: Action, known_etags: str | None) -> bool:
    """Return True if `If-None-Match` names this version. Tags are compared weakly, as RFC 9110 requires."""
    if known_etags is None:
        return False
    tags = {tag.strip().removeprefix("W/") for tag in known_etags.split(",")}
    return "*" in tags or action_etag(action).removeprefix("W/") in tags


def _admission_item(
    action: SubmitActionRequest,
    caller: Caller,
    key: str | None,
    trace: RequestTrace,
    *,
    source_snapshot: SnapshotSource | None = None,
    item_origins: Sequence[CoalescedCall] = (),
    gang_size: int = 0,
) -> str:
    """Return an `AdmitItem` as JSON."""
    # Defaults are omitted so that a field added in a later version does not change the hash of the body.
    body = action.model_dump_json(exclude_defaults=True)
    bound = body + (source_snapshot.model_dump_json() if source_snapshot is not None else "")
    bound += f"gang of {gang_size}" if gang_size else ""
    submission = SubmissionMetadata(
        project_id=caller.project_id,
        project=caller.project,
        key=key,
        body_hash=sha256(bound.encode()).hexdigest() if key is not None else None,
        traceparent=trace.parent,
        tracestate=trace.state if trace.state and len(trace.state) <= MAX_TRACESTATE_LENGTH else None,
        begins_with=source_snapshot,
        asked_for=list(item_origins),
    )
    return submission.to_item_json(body)


def check_idempotency_key(key: str | None) -> str | None:
    """Return the key. Raises `BadRequest` for a key that is empty, too long or not printable."""
    if key is None:
        return None
    if not key or len(key) > MAX_KEY_LENGTH - 5 or not key.isprintable():
        message = f"must have 1 to {MAX_KEY_LENGTH - 5} printable characters"
        raise BadRequest(
            f"Idempotency-Key {message}", errors=[FieldError(field="header.Idempotency-Key", message=message)]
        )
    return key


def _parse_cursor(cursor: str | None) -> UUID | None:
    try:
        return UUID(cursor) if cursor is not None else None
    except ValueError:
        message = "is not a cursor of this list: use next_cursor of the previous page"
        raise BadRequest(
            f"query.cursor {message}", errors=[FieldError(field="query.cursor", message=message)]
        ) from None


def _admission_result(answer: AdmitItemResult) -> AdmittedAction | TangramError:
    if answer.problem is not None:
        return error_from_problem(answer.problem)
    if answer.id is None:
        return TangramError("the response of admission has neither id nor problem")
    return AdmittedAction(answer.id, answer.created)


def _batch_item(result: AdmittedAction | BaseException, index: int) -> BatchItemResult:
    if isinstance(result, AdmittedAction):
        return BatchItemResult(id=result.id)
    if isinstance(result, TangramError):
        return BatchItemResult(problem=item_problem(result, index))
    raise result
