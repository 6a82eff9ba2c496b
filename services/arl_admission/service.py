"""The rules of admission: checks, refusals with their reasons, and idempotency keys."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from arl_admission import queries
from arl_admission.checks.environment_cache import EnvironmentCache
from arl_admission.checks.fleet import FleetCatalog
from arl_admission.checks.idempotency import item_result, key_of, known_gang_result
from arl_admission.checks.queue_backlog import QueueBacklog
from arl_admission.metrics import AdmissionMetrics
from arl_admission.node_queries import node_capacities
from arl_admission.nodes import NodeOperations
from arl_admission.normalise import NewAction, normalise
from arl_admission.reward_service_queries import registered_services
from arl_admission.reward_services import RewardServiceRegistry
from arl_admission.settings import AdmissionSettings
from arl_admission.trajectories.operations import TrajectoryOperations
from arl_kit.batcher import Batcher
from arl_kit.failpoints import Failpoints
from arl_kit.metrics import Metrics
from arl_kit.service_client import ServiceClient
from arl_store.tx import PostgresStore, ReadTx, Row, WriteTx, is_temporary
from arl_store.values import uuid7
from arl_wire.actions.batches import MAX_GANG_SIZE
from arl_wire.errors import FieldError, GangRefused, Internal, QueueFull, TangramError, Unavailable
from arl_wire.internal.admission import (
    AdmitItem,
    AdmitItemResult,
    AdmitResponse,
    AffectedRowsResponse,
    CancelActionsRequest,
    DeleteSnapshotRequest,
    InternalChangeProjectRequest,
    InternalChangeQueueRequest,
)
from arl_wire.internal.scheduler import ActionsAdmittedNotification, EndedTrajectory, GangMembership, QueuedActionRow

__all__ = ["AdmissionService"]

CAPACITY_REFRESH_S = 5.0
UNKNOWN_NAME_REFRESH_S = 0.5
"""Seconds until the nodes are read again if an action names an unknown template, service or endpoint."""
QUEUE_FULL_RETRY_S = 1
MAX_PENDING_INSERTS = 20_000
"""Maximum number of actions that wait for their insert; beyond it the response is 503 at once."""

log = logging.getLogger(__name__)


class AdmissionService:
    """The operations of admission. Actions are checked, then inserted in batches."""

    def __init__(
        self,
        store: PostgresStore,
        service_client: ServiceClient,
        settings: AdmissionSettings,
        metrics: Metrics | None = None,
    ) -> None:
        self._store = store
        self._service_client = service_client
        self._settings = settings
        self._queue_ids: dict[tuple[int, str], int] = {}
        self._fleet = FleetCatalog()
        self._fleet_refresh: asyncio.Task[None] | None = None
        """Read of the nodes in progress, if any."""
        self._environments = EnvironmentCache()
        self._backlog = QueueBacklog(store, default_limit=settings.default_max_queued)
        self._failpoints = Failpoints(settings.failpoints)
        self._metrics = AdmissionMetrics(metrics or Metrics())
        self._inserts: Batcher[AdmitItem, AdmitItemResult] = Batcher(
            self._insert_batch, max_batch=1000, max_waiting=MAX_PENDING_INSERTS
        )
        self._gangs: Batcher[Sequence[AdmitItem], list[AdmitItemResult]] = Batcher(
            self._insert_gangs, max_batch=1, max_waiting=MAX_PENDING_INSERTS // MAX_GANG_SIZE
        )
        self._insert_lock = asyncio.Lock()
        """Lock from the check of a queue's free slots until the inserted actions are counted."""
        self.reward_services = RewardServiceRegistry(store, self._fleet, insert_lock=self._insert_lock)
        self.trajectories = TrajectoryOperations(store, notify=lambda ended: self._notify_admitted([], ended))
        self.nodes = NodeOperations(store, self._fleet, notify=self._notify_rows_changed)

    async def admit(self, items: Sequence[AdmitItem]) -> AdmitResponse:
        """Admit actions and return after the commit. A refused item does not delay the others."""
        await self._refresh_fleet(items)
        answers: list[AdmitItemResult] = []
        refusals = await self._refusals(items)
        futures = [refusals[at] or self._inserts.enqueue(item) for at, item in enumerate(items)]
        for future in futures:
            try:
                if isinstance(future, AdmitItemResult):
                    answers.append(future)
                    continue
                if isinstance(future, Exception):
                    raise future
                answers.append(await future)
            except TangramError as error:
                self._metrics.refused.labels(error.code).inc()
                answers.append(AdmitItemResult(problem=error.to_problem()))
        return AdmitResponse(items=answers)

    async def admit_gang(self, items: Sequence[AdmitItem]) -> AdmitResponse:
        """Admit a gang in one commit, or refuse all of it with the reason in every result."""
        await self._refresh_fleet(items)
        refusals = [self._fleet.refusal(item) for item in items]
        refused = next(filter(None, refusals), None) or self._fleet.gang_refusal([item.action for item in items])
        try:
            if refused is None:
                return AdmitResponse(items=await self._gangs.submit(items))
            if bound := await self._read_bound_keys(items):
                return AdmitResponse(items=[known_gang_result(item, bound) for item in items])
        except TangramError as error:
            refused, refusals = error, []
        self._metrics.refused.labels(refused.code).inc(len(items))
        others = GangRefused(f"all actions of a gang are refused because one of them is refused: {refused.detail}")
        answers = [own or others for own in refusals] if any(refusals) else [refused] * len(items)
        return AdmitResponse(items=[AdmitItemResult(problem=answer.to_problem()) for answer in answers])

    async def cancel(self, request: CancelActionsRequest) -> AffectedRowsResponse:
        """Request the cancellation of actions; settled ones do not change."""
        async with self._store.write() as tx:
            count = await queries.request_cancel(tx, project_id=request.project_id, ids=request.ids)
        self._notify_rows_changed(count)
        return AffectedRowsResponse(count=count)

    async def delete_snapshot(self, request: DeleteSnapshotRequest) -> AffectedRowsResponse:
        """Request the deletion of a snapshot. Its node deletes it at its next poll."""
        async with self._store.write() as tx:
            count = await queries.request_snapshot_delete(tx, project_id=request.project_id, id=request.id)
        return AffectedRowsResponse(count=count)

    async def change_queue(self, request: InternalChangeQueueRequest) -> AffectedRowsResponse:
        """Change a queue. Queued actions remain; other admission processes read a new limit with their next count."""
        async with self._store.write() as tx:
            if request.create:
                await queries.ensure_queue(tx, project_id=request.project_id, task=request.task)
            queue = await queries.change_queue(tx, request)
        if queue is None:
            return AffectedRowsResponse(count=0)
        self._backlog.invalidate()
        self._notify_rows_changed(1)
        return AffectedRowsResponse(count=1)

    async def change_project(self, request: InternalChangeProjectRequest) -> AffectedRowsResponse:
        """Change a project. The count is 0 if it does not exist."""
        async with self._store.write() as tx:
            count = await queries.change_project(tx, request)
        self._notify_rows_changed(count)
        return AffectedRowsResponse(count=count)

    async def drain(self) -> None:
        """Wait until all inserts in progress have finished."""
        await self._inserts.drain()
        await self._gangs.drain()

    def _notify_rows_changed(self, count: int) -> None:
        if count:
            self._notify_admitted([])

    def _notify_admitted(self, actions: list[QueuedActionRow], ended: Sequence[EndedTrajectory] = ()) -> None:
        self._service_client.notify(
            f"{self._settings.scheduler_url}/internal/admitted",
            ActionsAdmittedNotification(actions=actions, ended=list(ended)),
            audience="scheduler",
        )

    async def _refresh_fleet(self, items: Sequence[AdmitItem]) -> None:
        """Read the nodes if the catalog is too old.

        During a read, further requests use the older catalog, if there is one.
        """
        if self._is_fresh(items) or (self._fleet_refresh is not None and self._fleet.read_at > float("-inf")):
            return
        if self._fleet_refresh is None:
            self._fleet_refresh = asyncio.create_task(self._reload_fleet())
        await asyncio.shield(self._fleet_refresh)

    def _is_fresh(self, items: Sequence[AdmitItem]) -> bool:
        age_s = time.monotonic() - self._fleet.read_at
        return age_s < (CAPACITY_REFRESH_S if self._fleet.has_all(items) else UNKNOWN_NAME_REFRESH_S)

    async def _reload_fleet(self) -> None:
        began, removals = time.monotonic(), -1
        try:
            while removals != self._fleet.removals:
                removals = self._fleet.removals
                async with self._store.read() as tx:
                    rows = await node_capacities(tx, silent_s=self._settings.forget_node_after_s)
                    registered = await registered_services(tx)
            self._fleet.update(rows, registered)
            self._fleet.read_at = began
        finally:
            self._fleet_refresh = None

    async def _refusals(self, items: Sequence[AdmitItem]) -> list[AdmitItemResult | Exception | None]:
        """Return errors of items that no node can ever run. An item with a bound key gets its existing action."""
        refusals = [self._fleet.refusal(item) for item in items]
        refused = [item for item, refusal in zip(items, refusals, strict=True) if refusal is not None]
        bound = await self._read_bound_keys(refused)
        return [
            refusal and (item_result(item, None, inserted={}, bound=bound) if key_of(item) in bound else refusal)
            for item, refusal in zip(items, refusals, strict=True)
        ]

    async def _read_bound_keys(self, items: Sequence[AdmitItem]) -> dict[tuple[int, str], tuple[str, UUID]]:
        if all(item.key is None for item in items):
            return {}
        async with self._store.read() as tx:
            return await self._query_bound_keys(tx, items)

    async def _insert_batch(self, items: Sequence[AdmitItem]) -> Sequence[AdmitItemResult | Exception]:
        """Insert items in one statement.

        If one cannot be written, insert each alone, so that it does not block the others.
        """
        try:
            return await self._insert_checked(items)
        except Exception as error:
            if isinstance(error, TangramError) or is_temporary(error):
                raise
            if len(items) > 1:
                return [await self._insert_single(item) for item in items]
            log.exception("the insert of an action failed")
            return [
                Internal("an internal error occurred while storing the action; the logs of the service have details")
            ]

    async def _insert_single(self, item: AdmitItem) -> AdmitItemResult | Exception:
        """Insert one item and return its result or error, so that the results of other items remain."""
        try:
            return (await self._insert_batch([item]))[0]
        except Exception as error:  # noqa: BLE001 - raised to the submitter
            return error

    async def _insert_checked(self, items: Sequence[AdmitItem]) -> Sequence[AdmitItemResult | Exception]:
        """Insert a batch in one statement and thus one commit; the queries before and after it only read."""
        await self._ensure_queues({(item.project_id, item.action.task) for item in items})
        async with self._insert_lock:
            await self._backlog.refresh(Counter(self._queue_of(item) for item in items))
            return await self._insert_admissible(items)

    async def _insert_admissible(self, items: Sequence[AdmitItem]) -> Sequence[AdmitItemResult | Exception]:
        async with self._store.statement() as tx:
            # A refusal here binds no key, so that the same request may succeed later.
            refused = await self._environments.refusals(tx, items, self._queue_of)
            known = await self._query_bound_keys(tx, [items[at] for at in refused])
            refused = {at: error for at, error in refused.items() if key_of(items[at]) not in known}
            refused |= await self._over_limit(tx, items)
            refused |= self.reward_services.removal_refusals(items)
            fitting = [at for at in range(len(items)) if at not in refused]
            new = self._first_of_each_key(items, fitting)
            inserted = await self._insert_new(tx, list(new.values()))
            others = [items[at] for at in fitting if at not in new or new[at].id not in inserted]
            bound = await self._query_bound_keys(tx, others)
        return [
            refused.get(at) or item_result(items[at], new.get(at), inserted=inserted, bound=bound)
            for at in range(len(items))
        ]

    async def _insert_gangs(self, gangs: Sequence[Sequence[AdmitItem]]) -> Sequence[list[AdmitItemResult]]:
        return [await self._insert_gang(items) for items in gangs]

    async def _insert_gang(self, items: Sequence[AdmitItem]) -> list[AdmitItemResult]:
        await self._ensure_queues({(item.project_id, item.action.task) for item in items})
        async with self._insert_lock:
            await self._backlog.refresh(Counter(self._queue_of(item) for item in items))
            return await self._insert_gang_rows(items)

    async def _insert_gang_rows(self, items: Sequence[AdmitItem]) -> list[AdmitItemResult]:
        async with self._store.write() as tx:
            if bound := await self._query_bound_keys(tx, items):
                return [known_gang_result(item, bound) for item in items]
            if full := await self._over_limit(tx, items):
                raise next(iter(full.values()))
            gang = GangMembership(id=uuid7(self._settings.cell), size=len(items))
            new = [self._normalise(item, gang=gang) for item in items]
            rows = await queries.insert_actions(tx, new, retention_s=self._settings.idempotency_key_retention_s)
            if len(rows) < len(new):
                raise Unavailable(
                    "another request with this Idempotency-Key is in progress; try again", retry_after_s=1
                )
        self._failpoints.hit("admission.after_commit")
        self._announce(new, rows)
        return [AdmitItemResult(id=action.id, created=True) for action in new]

    def _normalise(
        self, item: AdmitItem, *, gang: GangMembership | None = None, registered: Collection[str] = ()
    ) -> NewAction:
        """Return the rows of an action under a new id."""
        return normalise(
            item,
            id=uuid7(self._settings.cell),
            queue_id=self._queue_of(item),
            gang=gang,
            registered=registered,
            cpu_form=self._settings.cpu_form,
        )

    def _first_of_each_key(self, items: Sequence[AdmitItem], positions: Sequence[int]) -> dict[int, NewAction]:
        """Return the items that may become actions, by position. Of items that share a key, it is the first."""
        seen: set[tuple[int, str]] = set()
        new: dict[int, NewAction] = {}
        for at in positions:
            item = items[at]
            if item.key is not None:
                if (item.project_id, item.key) in seen:
                    continue
                seen.add((item.project_id, item.key))
            registered = self._fleet.registered
            new[at] = self._normalise(item, registered=registered)
        return new

    async def _insert_new(self, tx: WriteTx, new: Sequence[NewAction]) -> dict[UUID, Row]:
        if not new:
            return {}
        rows = await queries.insert_actions(tx, new, retention_s=self._settings.idempotency_key_retention_s)
        self._failpoints.hit("admission.after_commit")
        self._announce([action for action in new if action.id in rows], rows)
        return rows

    def _announce(self, inserted: Sequence[NewAction], rows: Mapping[UUID, Row]) -> None:
        """Count and announce committed actions. An error here must not look like a failed insert."""
        self._metrics.admitted.inc(len(inserted))
        if not inserted:
            return
        self._backlog.record_inserted(Counter(action.queue_id for action in inserted))
        try:
            self._notify_admitted([_queued_row(action, rows[action.id]) for action in inserted])
        except Exception:
            log.exception("the scheduler could not be notified of %d actions; its next poll reads them", len(inserted))

    async def _query_bound_keys(
        self, tx: ReadTx, items: Sequence[AdmitItem]
    ) -> dict[tuple[int, str], tuple[str, UUID]]:
        """Return the body hash and the action id that the keys of these items are bound to."""
        keys = {(item.project_id, item.key) for item in items if item.key is not None}
        return await queries.known_keys(tx, sorted(keys)) if keys else {}

    async def _ensure_queues(self, names: set[tuple[int, str]]) -> None:
        """Create missing queues in a separate transaction, so that cached ids are committed."""
        missing = sorted(names - self._queue_ids.keys())
        if not missing:
            return
        async with self._store.write() as tx:
            made = {key: await queries.ensure_queue(tx, project_id=key[0], task=key[1]) for key in missing}
        self._queue_ids.update(made)

    def _queue_of(self, item: AdmitItem) -> int:
        return self._queue_ids[item.project_id, item.action.task]

    async def _over_limit(self, tx: WriteTx, items: Sequence[AdmitItem]) -> dict[int, Exception]:
        """Return errors of items beyond the limits of their queues; the first ones fit. Existing actions always fit."""
        wanted = Counter(self._queue_of(item) for item in items)
        full = {queue for queue, new in wanted.items() if new > self._backlog.remaining(queue)}
        if not full:
            return {}
        asked = [at for at, item in enumerate(items) if self._queue_of(item) in full]
        keys = [(items[at].project_id, key) for at in asked if (key := items[at].key) is not None]
        known = await queries.known_keys(tx, keys) if keys else {}
        room = {queue: self._backlog.remaining(queue) for queue in full}
        over: dict[int, Exception] = {}
        for at in asked:
            item, queue = items[at], self._queue_of(items[at])
            if (item.project_id, item.key) in known:
                continue
            room[queue] -= 1
            if room[queue] < 0:
                over[at] = _queue_full_error(item.action.task, self._backlog.limit(queue))
        return over


def _queue_full_error(task: str, limit: int) -> QueueFull:
    message = (
        f"the queue of task {task!r} has {limit} actions, its maximum; try again when some have started, or raise the"
        " limit with `tangram queues set`"
    )
    return QueueFull(message, errors=[FieldError(field="task", message=message)], retry_after_s=QUEUE_FULL_RETRY_S)


def _queued_row(action: NewAction, row: Row) -> QueuedActionRow:
    return action.to_queued_row(submitted=row.submitted, deadline=row.deadline)
