"""The audit log for administrators. Each change writes its own entry."""

import json

from arl_gateway.audit_log.queries import list_audit_log
from arl_gateway.http.auth import Caller
from arl_store.tx import PostgresStore, Row
from arl_wire.admin.audit_log import AuditLogEntry, AuditLogResponse

__all__ = ["AuditLogReader"]


class AuditLogReader:
    """Reader of the audit log.

    Keys of the first project read the entries of all projects; other keys read those of their own project.
    """

    def __init__(self, store: PostgresStore) -> None:
        self._store = store

    async def list(
        self, caller: Caller, *, project: str | None, verb: str | None, before: int | None, limit: int
    ) -> AuditLogResponse:
        """Return one page of the entries that the caller may read, newest first."""
        visible_project_id = None if caller.is_root else caller.project_id
        async with self._store.read() as tx:
            rows = await list_audit_log(
                tx, project_id=visible_project_id, project=project, verb=verb, before=before, limit=limit + 1
            )
        items = [_entry_from_row(row) for row in rows[:limit]]
        return AuditLogResponse(items=items, next_before=items[-1].id if len(rows) > limit else None)


def _entry_from_row(row: Row) -> AuditLogEntry:
    return AuditLogEntry(
        id=row.id,
        at=row.at,
        project=row.project,
        api_key_id=row.api_key_id,
        verb=row.verb,
        target=row.target,
        detail=json.loads(row.detail),
    )
