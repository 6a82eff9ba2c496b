"""Queues shown and changed. Admission is the writer of their rows; a change goes through it."""

from arl_gateway import repository
from arl_gateway.auth import Caller
from arl_kit.peers import Peers
from arl_store.tx import Row, Store
from arl_wire.errors import NotFound
from arl_wire.internal import ChangeQueueWish, WishAnswer
from arl_wire.queues import ChangeQueue, Queue, QueueList, Quota

__all__ = ["QueueAdmin"]


class QueueAdmin:
    def __init__(self, store: Store, peers: Peers, *, admission_url: str) -> None:
        self._store = store
        self._peers = peers
        self._admission_url = admission_url

    async def list(self, caller: Caller, *, cursor: int | None, limit: int) -> QueueList:
        """Those of the caller's project."""
        async with self._store.read() as tx:
            rows = await repository.list_queues(tx, project_id=caller.project_id, after=cursor, limit=limit + 1)
        items = [_shown(row) for row in rows[:limit]]
        return QueueList(items=items, next_cursor=items[-1].id if len(rows) > limit else None)

    async def change(self, task: str, wanted: ChangeQueue, caller: Caller) -> Queue:
        """A limit and a pause hold from this answer on, for what comes through the admission that was asked.

        A weight and a quota hold from the scheduler's next poll on, for which it is asked at once.
        """
        body = ChangeQueueWish(
            project_id=caller.project_id,
            task=task,
            limits=wanted.limits,
            max_queued=wanted.max_queued,
            paused=wanted.paused,
            weight=wanted.weight,
            sets_quota=wanted.sets_quota,
            quota=wanted.quota,
        )
        content = await self._peers.call(f"{self._admission_url}/internal/change-queue", body)
        if WishAnswer.model_validate_json(content).count == 0:
            raise NotFound(f"there is no queue of task {task!r}; its first action makes it")
        async with self._store.write() as tx:
            await repository.insert_audit(
                tx,
                project_id=caller.project_id,
                api_key_id=caller.key_id,
                verb="queue.change",
                target=f"queue:{task}",
                detail=wanted.model_dump_json(exclude_unset=True),
            )
            row = await repository.queue_of_project(tx, project_id=caller.project_id, task=task)
        if row is None:
            raise NotFound(f"there is no queue of task {task!r} any more")
        return _shown(row)


def _shown(row: Row) -> Queue:
    return Queue(
        id=row.id,
        task=row.task,
        max_queued=row.max_queued,
        waiting=row.waiting,
        running=row.running,
        paused=row.paused,
        weight=row.weight,
        quota=Quota.model_validate_json(row.quota) if row.quota is not None else None,
    )
