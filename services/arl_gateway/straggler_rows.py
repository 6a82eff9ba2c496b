"""The statement about stragglers."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import text

from arl_store.tx import ReadTx, Row

__all__ = ["names_of"]

NAMES_OF = text("""
    select a.id, a.trajectory, q.task, n.name as node
      from actions as a
      join queues as q on q.id = a.queue_id
      left join nodes as n on n.id = a.node_id
     where a.id = any(cast(:ids as uuid[]))
       and a.project_id = :project_id
       and a.state = 'running'
""")


async def names_of(tx: ReadTx, ids: Sequence[UUID], *, project_id: int) -> dict[UUID, Row]:
    """Of those that run and are this project's."""
    return {row.id: row for row in await tx.fetch(NAMES_OF, {"ids": list(ids), "project_id": project_id})}
