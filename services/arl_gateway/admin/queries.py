"""Statements about queues and projects."""

from collections.abc import Sequence

from sqlalchemy import text

from arl_store.tx import ReadTx, Row, WriteTx

__all__ = ["insert_project", "list_projects", "list_queues", "project_by_name", "queue_by_task"]

# Each half uses the partial index of its states; a single combined query would scan all actions.
_QUEUE = """
    with unsettled as (
        select queue_id, 1 as waiting, 0 as running
          from actions
         where state = 'queued' and project_id = :project_id
     union all
        select queue_id, 0, 1
          from actions
         where state in ('granted', 'running') and project_id = :project_id
    ), counted as (
        select queue_id, sum(waiting) as waiting, sum(running) as running from unsettled group by queue_id
    )
    select q.id, q.task, q.max_queued, q.weight, q.quota::text as quota, q.paused_at is not null as paused,
           coalesce(c.waiting, 0) as waiting, coalesce(c.running, 0) as running
      from queues as q
      left join counted as c on c.queue_id = q.id
     where q.project_id = :project_id
"""

LIST_QUEUES = text(
    _QUEUE
    + """
       and (cast(:after as int) is null or q.id > :after)
     order by q.id
     limit :limit
    """
)

QUEUE_BY_TASK = text(_QUEUE + " and q.task = :task")

INSERT_PROJECT = text("insert into projects (name) values (:name) on conflict (name) do nothing returning id")

LIST_PROJECTS = text("""
    select id, name, weight
      from projects
     where (cast(:only as int) is null or id = :only)
       and (cast(:after as int) is null or id > :after)
     order by id
     limit :limit
""")

PROJECT_BY_NAME = text("select id, name, weight from projects where name = :name")


async def insert_project(tx: WriteTx, name: str) -> int | None:
    """Return the id of the new project; None if the name is taken."""
    row = await tx.first(INSERT_PROJECT, {"name": name})
    return int(row.id) if row is not None else None


async def list_queues(tx: ReadTx, *, project_id: int, after: int | None, limit: int) -> Sequence[Row]:
    """Return the queues of a project in order of creation."""
    return await tx.fetch(LIST_QUEUES, {"project_id": project_id, "after": after, "limit": limit})


async def queue_by_task(tx: ReadTx, *, project_id: int, task: str) -> Row | None:
    """Return the queue of a task, or None."""
    return await tx.first(QUEUE_BY_TASK, {"project_id": project_id, "task": task})


async def list_projects(tx: ReadTx, *, only: int | None, after: int | None, limit: int) -> Sequence[Row]:
    """Return projects in order of creation; with `only`, at most that project."""
    return await tx.fetch(LIST_PROJECTS, {"only": only, "after": after, "limit": limit})


async def project_by_name(tx: ReadTx, name: str) -> Row | None:
    """Return a project, or None."""
    return await tx.first(PROJECT_BY_NAME, {"name": name})
