"""The statement about stragglers."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import text

from arl_store.tx import ReadTx, Row

__all__ = ["running_actions"]

RUNNING_ACTIONS = text("""
    select a.id, a.trajectory, q.task, n.name as node
      from actions as a
      join queues as q on q.id = a.queue_id
      left join nodes as n on n.id = a.node_id
     where a.id = any(cast(:ids as uuid[]))
       and a.project_id = :project_id
       and a.state = 'running'
""")


async def running_actions(tx: ReadTx, ids: Sequence[UUID], *, project_id: int) -> dict[UUID, Row]:
    """Of those that run and are this project's."""
    return {row.id: row for row in await tx.fetch(RUNNING_ACTIONS, {"ids": list(ids), "project_id": project_id})}
