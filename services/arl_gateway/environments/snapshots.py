"""Snapshots of persistent environments: created in order with the actions, listed and deleted."""

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from arl_gateway.actions.service import RequestTrace
from arl_gateway.environments import snapshot_queries
from arl_gateway.environments.archives import ArchiveService
from arl_gateway.http.auth import Caller
from arl_kit.service_client import ServiceClient
from arl_store.tx import PostgresStore, Row
from arl_wire.environments.environment import SnapshotInfo, SnapshotListResponse
from arl_wire.errors import BadRequest, FieldError
from arl_wire.internal.admission import DeleteSnapshotRequest

__all__ = ["TAKE_SNAPSHOT", "SnapshotService"]

TAKE_SNAPSHOT: Mapping[str, Any] = {"op": "pack", "path": "", "whole": True, "max_bytes": 1 << 50}
"""Operation of a transfer that stores all written files on the node. The snapshot has the id of the action."""


class SnapshotService:
    """The operations on snapshots."""

    def __init__(
        self, store: PostgresStore, archives: ArchiveService, peers: ServiceClient, *, admission_url: str
    ) -> None:
        self._store, self._archives, self._peers = store, archives, peers
        self._admission_url = admission_url

    async def create(self, environment: UUID, caller: Caller, *, trace: RequestTrace) -> SnapshotInfo:
        """Create a snapshot and wait for it. A snapshot is either complete or absent."""
        async with self._archives.transfer(environment, caller, trace, TAKE_SNAPSHOT) as content:
            said: dict[str, Any] = json.loads(b"".join([chunk async for chunk in content]))
        return await self.get(UUID(said["id"]), caller)

    async def get(self, id: UUID, caller: Caller) -> SnapshotInfo:
        """Return a snapshot of the caller's project. Raises `NotFound`."""
        async with self._store.read() as tx:
            return _snapshot_from_row(await snapshot_queries.snapshot_by_id(tx, id, caller))

    async def list(self, caller: Caller, *, task: str | None, cursor: str | None, limit: int) -> SnapshotListResponse:
        """Return a page of the project's snapshots, newest first. Raises `BadRequest` for an invalid cursor."""
        async with self._store.read() as tx:
            rows = await snapshot_queries.list_snapshots(
                tx,
                project_id=caller.project_id,
                task=task,
                before=_parse_cursor(cursor),
                limit=limit + 1,
            )
        items = [_snapshot_from_row(row) for row in rows[:limit]]
        return SnapshotListResponse(items=items, next_cursor=str(items[-1].id) if len(rows) > limit else None)

    async def delete(self, id: UUID, caller: Caller) -> None:
        """Delete a snapshot. Its node removes the files soon; environments that started from it are not affected."""
        await self.get(id, caller)
        wish = DeleteSnapshotRequest(project_id=caller.project_id, id=id)
        await self._peers.call(f"{self._admission_url}/internal/delete-snapshot", wish, audience="admission")


def _snapshot_from_row(row: Row) -> SnapshotInfo:
    return SnapshotInfo(**{name: row[name] for name in SnapshotInfo.model_fields})


def _parse_cursor(cursor: str | None) -> UUID | None:
    try:
        return UUID(cursor) if cursor is not None else None
    except ValueError:
        message = "is not a cursor of this list: use next_cursor of the previous page"
        raise BadRequest(
            f"query.cursor {message}", errors=[FieldError(field="query.cursor", message=message)]
        ) from None
