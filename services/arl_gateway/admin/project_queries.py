"""The statements about projects."""

from collections.abc import Sequence

from sqlalchemy import text

from arl_store.tx import ReadTx, Row

__all__ = ["list_projects", "project_by_name"]

LIST_PROJECTS = text("""
    select id, name, weight
      from projects
     where (cast(:only as int) is null or id = :only)
       and (cast(:after as int) is null or id > :after)
     order by id
     limit :limit
""")

PROJECT_BY_NAME = text("select id, name, weight from projects where name = :name")


async def list_projects(tx: ReadTx, *, only: int | None, after: int | None, limit: int) -> Sequence[Row]:
    """In order of their making; with `only`, at most that one."""
    return await tx.fetch(LIST_PROJECTS, {"only": only, "after": after, "limit": limit})


async def project_by_name(tx: ReadTx, name: str) -> Row | None:
    return await tx.first(PROJECT_BY_NAME, {"name": name})
