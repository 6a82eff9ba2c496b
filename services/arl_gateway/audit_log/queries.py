"""Statements about the audit log."""

import json
from collections.abc import Mapping, Sequence

from sqlalchemy import text

from arl_gateway.http.auth import ROOT_PROJECT
from arl_store.tx import ReadTx, Row, WriteTx

__all__ = ["insert_audit_log", "insert_node_event", "list_audit_log"]

INSERT_AUDIT_LOG = text("""
    insert into audit_log (project_id, api_key_id, verb, target, detail)
    values (:project_id, :api_key_id, :verb, :target, cast(:detail as jsonb))
""")

INSERT_NODE_EVENT = text("""
    insert into audit_log (project_id, verb, target, detail)
    select id, :verb, :target, cast(:detail as jsonb) from projects where name = :project
""")

LIST_AUDIT_LOG = text("""
    select l.id, l.at, p.name as project, l.api_key_id, l.verb, l.target, l.detail
      from audit_log l
      left join projects p on p.id = l.project_id
     where (cast(:project_id as int) is null or l.project_id = :project_id)
       and (cast(:project as text) is null or p.name = :project)
       and (cast(:verb as text) is null or l.verb = :verb)
       and (cast(:before as bigint) is null or l.id < :before)
     order by l.id desc
     limit :limit
""")


async def list_audit_log(
    tx: ReadTx, *, project_id: int | None, project: str | None, verb: str | None, before: int | None, limit: int
) -> Sequence[Row]:
    """Return entries, newest first. A filter that is None matches every entry."""
    return await tx.fetch(
        LIST_AUDIT_LOG, {"project_id": project_id, "project": project, "verb": verb, "before": before, "limit": limit}
    )


async def insert_audit_log(
    tx: WriteTx, *, project_id: int, api_key_id: int, verb: str, target: str, detail: str
) -> None:
    """Insert an entry in the transaction of the change; `detail` is a JSON object as text."""
    await tx.execute(
        INSERT_AUDIT_LOG,
        {"project_id": project_id, "api_key_id": api_key_id, "verb": verb, "target": target, "detail": detail},
    )


async def insert_node_event(tx: WriteTx, *, verb: str, name: str, detail: Mapping[str, str]) -> None:
    """Insert an entry of a node that acted without an API key, in the first project."""
    values = {"verb": verb, "target": f"node:{name}", "project": ROOT_PROJECT, "detail": json.dumps(detail)}
    await tx.execute(INSERT_NODE_EVENT, values)
