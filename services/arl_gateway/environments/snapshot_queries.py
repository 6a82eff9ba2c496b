"""Statements about snapshots."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import text

from arl_gateway.http.auth import Caller
from arl_store.tx import ReadTx, Row
from arl_wire.errors import Conflict, FieldError, NotFound

__all__ = ["list_snapshots", "snapshot_by_id"]

NODE_TTL_S = 10.0

_SNAPSHOT = """
    select s.id, q.task, s.trajectory, s.environment_id as environment, n.name as node, s.node_id, s.template,
           s.memory_mib, s.disk_mib, s.pids, s.members, s.bytes, s.created_at, s.network::text as network,
           b.last_beat > now() - make_interval(secs => :ttl_s) as has_node
      from snapshots as s
      join queues as q on q.id = s.queue_id
      join nodes as n on n.id = s.node_id
      join node_beats as b on b.node_id = s.node_id
     where s.project_id = :project_id
       and s.delete_requested_at is null
"""

SNAPSHOT_BY_ID = text(_SNAPSHOT + " and s.id = :id")

LIST_SNAPSHOTS = text(
    _SNAPSHOT
    + """
       and (cast(:task as text) is null or q.task = :task)
       and (cast(:before as uuid) is null or s.id < :before)
     order by s.id desc
     limit :limit
"""
)


async def snapshot_by_id(tx: ReadTx, id: UUID, caller: Caller, *, as_source: bool = False) -> Row:
    """Return a snapshot. Raises NotFound, and Conflict if `as_source` and its node is not alive."""
    rows = await tx.fetch(SNAPSHOT_BY_ID, {"id": id, "project_id": caller.project_id, "ttl_s": NODE_TTL_S})
    if not rows:
        message = f"snapshot {id} does not exist in this project"
        raise NotFound(message, errors=[FieldError(field="snapshot", message=message)])
    row = rows[0]
    if as_source and not row.has_node:
        message = f"is stored on node {row.node}, which is not available"
        raise Conflict(f"snapshot {id} {message}", errors=[FieldError(field="snapshot", message=message)])
    return row


async def list_snapshots(
    tx: ReadTx, *, project_id: int, task: str | None, before: UUID | None, limit: int
) -> Sequence[Row]:
    """Return snapshots, newest first."""
    asked = {"project_id": project_id, "task": task, "before": before, "limit": limit, "ttl_s": NODE_TTL_S}
    return await tx.fetch(LIST_SNAPSHOTS, asked)
