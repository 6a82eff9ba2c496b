"""Listing and changing of queues. Admission writes their rows."""

from arl_gateway.admin import queries
from arl_gateway.audit_log.queries import insert_audit_log
from arl_gateway.http.auth import Caller
from arl_kit.service_client import ServiceClient
from arl_store.tx import PostgresStore, Row
from arl_wire.admin.queues import ChangeQueueRequest, Queue, QueueListResponse, QueueQuota
from arl_wire.errors import NotFound
from arl_wire.internal.admission import AffectedRowsResponse, InternalChangeQueueRequest

__all__ = ["QueueAdmin"]


class QueueAdmin:
    """Administration of the queues of a project."""

    def __init__(self, store: PostgresStore, peers: ServiceClient, *, admission_url: str) -> None:
        self._store = store
        self._peers = peers
        self._admission_url = admission_url

    async def list(self, caller: Caller, *, cursor: int | None, limit: int) -> QueueListResponse:
        """List the queues of the caller's project."""
        async with self._store.read() as tx:
            rows = await queries.list_queues(tx, project_id=caller.project_id, after=cursor, limit=limit + 1)
        items = [_queue_from_row(row) for row in rows[:limit]]
        return QueueListResponse(items=items, next_cursor=items[-1].id if len(rows) > limit else None)

    async def change(self, task: str, request: ChangeQueueRequest, caller: Caller, *, create: bool = False) -> Queue:
        """Change a queue. With `create`, a task without a queue gets one; otherwise `NotFound` is raised.

        A limit and a pause take effect at once in the admission process that answered. A weight and a quota take effect
        at the scheduler's next poll, which is requested at once.
        """
        body = InternalChangeQueueRequest(
            project_id=caller.project_id,
            task=task,
            limits=request.sets_max_queued,
            max_queued=request.max_queued,
            paused=request.paused,
            weight=request.weight,
            sets_quota=request.sets_quota,
            quota=request.quota,
            create=create,
        )
        content = await self._peers.call(f"{self._admission_url}/internal/change-queue", body, audience="admission")
        if AffectedRowsResponse.model_validate_json(content).count == 0:
            raise NotFound(f"task {task!r} has no queue: its first action creates it")
        async with self._store.write() as tx:
            await insert_audit_log(
                tx,
                project_id=caller.project_id,
                api_key_id=caller.key_id,
                verb="queue.change",
                target=f"queue:{task}",
                detail=request.model_dump_json(exclude_unset=True),
            )
            row = await queries.queue_by_task(tx, project_id=caller.project_id, task=task)
        if row is None:
            raise NotFound(f"the queue of task {task!r} was removed meanwhile")
        return _queue_from_row(row)


def _queue_from_row(row: Row) -> Queue:
    return Queue(
        id=row.id,
        task=row.task,
        max_queued=row.max_queued,
        queued=row.waiting,
        running=row.running,
        paused=row.paused,
        weight=row.weight,
        quota=QueueQuota.model_validate_json(row.quota) if row.quota is not None else None,
    )
