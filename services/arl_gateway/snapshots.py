"""Snapshots of kept environments: taken in their turn among the actions, listed, deleted by a wish."""

import json
from typing import Any
from uuid import UUID

from arl_gateway import snapshot_rows
from arl_gateway.archives import Archives
from arl_gateway.auth import Caller
from arl_gateway.service import Trace
from arl_kit.peers import Peers
from arl_store.tx import Row, Store
from arl_wire.errors import BadRequest, FieldError
from arl_wire.internal import DeleteSnapshotWish
from arl_wire.snapshots import Snapshot, SnapshotPage

__all__ = ["Snapshots"]


class Snapshots:
    def __init__(self, store: Store, archives: Archives, peers: Peers, *, admission_url: str) -> None:
        self._store, self._archives, self._peers = store, archives, peers
        self._admission_url = admission_url

    async def take(self, environment: UUID, caller: Caller, *, trace: Trace) -> Snapshot:
        """Returns when it is there; it is there as a whole or not at all."""
        asked = {"op": "pack", "path": "", "whole": True, "max_bytes": 1 << 50}
        async with self._archives.transfer(environment, caller, trace, asked) as content:
            said: dict[str, Any] = json.loads(b"".join([chunk async for chunk in content]))
        return await self.get(UUID(said["id"]), caller)

    async def get(self, id: UUID, caller: Caller) -> Snapshot:
        async with self._store.read() as tx:
            return _snapshot_of(await snapshot_rows.source_of(tx, id, caller))

    async def list(self, caller: Caller, *, task: str | None, cursor: str | None, limit: int) -> SnapshotPage:
        async with self._store.read() as tx:
            rows = await snapshot_rows.list_snapshots(
                tx,
                project_id=caller.project_id,
                task=task,
                before=_cursor(cursor),
                limit=limit + 1,
            )
        items = [_snapshot_of(row) for row in rows[:limit]]
        return SnapshotPage(items=items, next_cursor=str(items[-1].id) if len(rows) > limit else None)

    async def delete(self, id: UUID, caller: Caller) -> None:
        """Its node removes the files soon; what began with it goes on."""
        await self.get(id, caller)
        wish = DeleteSnapshotWish(project_id=caller.project_id, id=id)
        await self._peers.call(f"{self._admission_url}/internal/delete-snapshot", wish)


def _snapshot_of(row: Row) -> Snapshot:
    return Snapshot(**{name: row[name] for name in Snapshot.model_fields})


def _cursor(cursor: str | None) -> UUID | None:
    try:
        return UUID(cursor) if cursor is not None else None
    except ValueError:
        message = "is not a cursor of this list; take it from next_cursor"
        raise BadRequest(
            f"query.cursor {message}", errors=[FieldError(field="query.cursor", message=message)]
        ) from None
