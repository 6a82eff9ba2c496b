"""Statements that read the names of tasks, for metrics."""

from collections.abc import Mapping
from uuid import UUID

from sqlalchemy import text

from arl_store.tx import ReadTx

__all__ = ["names_of_own_tasks", "queue_names"]

QUEUE_NAMES = text("""
    select queues.id, projects.name as project, queues.task
      from queues
      join projects on projects.id = queues.project_id
     where queues.id = any(cast(:ids as int[]))
""")
NAMES_OF_OWN_TASKS = text("select id, project, task from names_of_own_tasks(cast(:actions as uuid[]))")


async def queue_names(tx: ReadTx, queues: Mapping[int, UUID | None]) -> dict[int, tuple[str, str]]:
    """Return project and task of each queue. Roles of nodes may not read these tables."""
    rows = await tx.fetch(QUEUE_NAMES, {"ids": sorted(queues)})
    return {row.id: (row.project, row.task) for row in rows}


async def names_of_own_tasks(tx: ReadTx, queues: Mapping[int, UUID | None]) -> dict[int, tuple[str, str]]:
    """Return project and task of queues, each proved by the id of an action that was granted to a node of this role.

    The rows of the actions are found by their ids, so the duration does not depend on the size of the table.
    """
    actions = sorted(action for action in queues.values() if action is not None)
    rows = await tx.fetch(NAMES_OF_OWN_TASKS, {"actions": actions})
    return {row.id: (row.project, row.task) for row in rows}
