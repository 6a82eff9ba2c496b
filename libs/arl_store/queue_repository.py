"""Statements about queues that several services use."""

from collections.abc import Collection

from sqlalchemy import text

from arl_store.tx import ReadTx

__all__ = ["queue_names"]

QUEUE_NAMES = text("""
    select queues.id, projects.name as project, queues.task
      from queues
      join projects on projects.id = queues.project_id
     where queues.id = any(cast(:ids as int[]))
""")


async def queue_names(tx: ReadTx, ids: Collection[int]) -> dict[int, tuple[str, str]]:
    """Return project and task of each queue. A node's role finds only queues of actions that it was granted."""
    rows = await tx.fetch(QUEUE_NAMES, {"ids": sorted(ids)})
    return {row.id: (row.project, row.task) for row in rows}
