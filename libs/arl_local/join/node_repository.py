"""Statements of a joined node about itself, with its own role. Row security hides all other nodes."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg

from arl_local.join.credentials import JoinedNode

__all__ = ["NodeConnection", "connected_node"]

_TIMEOUT_S = 15.0

_DRAIN = "select drain_own_node($1)"
_COUNT_LEFT = """
    select (select count(*) from actions as a where a.node_id = n.id and a.state in ('granted', 'running'))
           + (select count(*) from environments as e
               where e.node_id = n.id and e.ended_at is null and e.lost_at is null)
      from nodes as n
     where n.name = $1
"""
_IS_CORDONED = "select cordoned_at is not null from nodes where name = $1"
_REGISTERED = "select driver, capacity::text as capacity, enforced::text as enforced from nodes where name = $1"


class NodeConnection:
    """A connection with the role of a node."""

    def __init__(self, connection: asyncpg.Connection, name: str) -> None:
        self._connection, self._name = connection, name

    async def drain(self, deadline_s: float) -> None:
        """Cordon the node, and end what remains after these seconds."""
        await self._connection.fetchval(_DRAIN, deadline_s)

    async def reopen(self) -> None:
        """Allow new work. A drain in progress stops."""
        await self._connection.fetchval(_DRAIN, None)

    async def is_cordoned(self) -> bool:
        """Return True if nothing new is placed on the node."""
        return bool(await self._connection.fetchval(_IS_CORDONED, self._name))

    async def count_left(self) -> int:
        """Return the number of granted or running actions and of environments."""
        return int(await self._connection.fetchval(_COUNT_LEFT, self._name) or 0)

    async def registered(self) -> dict[str, Any]:
        """Return the driver, the capacity and the enforced limits; empty before the first registration."""
        row = await self._connection.fetchrow(_REGISTERED, self._name)
        if row is None:
            return {}
        return {"driver": row["driver"]} | {name: json.loads(row[name]) for name in ("capacity", "enforced")}


@asynccontextmanager
async def connected_node(joined: JoinedNode, directory: Path) -> AsyncIterator[NodeConnection]:
    """Connect with the credentials in the state directory. Raises OSError and the errors of asyncpg."""
    connection = await asyncpg.connect(joined.database_url_in(directory), timeout=_TIMEOUT_S)
    try:
        yield NodeConnection(connection, joined.name)
    finally:
        await connection.close()
