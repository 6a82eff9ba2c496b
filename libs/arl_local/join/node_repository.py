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
_KIND = "select kind from nodes where name = $1"
_COUNT_ACTIONS = """
    select count(*)
      from actions as a
      join nodes as n on n.id = a.node_id
     where n.name = $1 and a.state in ('granted', 'running')
"""
_COUNT_ENVIRONMENTS = """
    select count(*)
      from environments as e
      join nodes as n on n.id = e.node_id
     where n.name = $1 and e.ended_at is null and e.lost_at is null
"""
_REGISTERED = "select driver, capacity::text as capacity, enforced::text as enforced from nodes where name = $1"


class NodeConnection:
    """A connection with the role of a node."""

    def __init__(self, connection: asyncpg.Connection, name: str) -> None:
        self._connection, self._name = connection, name

    async def drain(self, deadline_s: float) -> None:
        """Cordon the node, and end what remains after these seconds."""
        await self._connection.fetchval(_DRAIN, deadline_s)

    async def reopen(self) -> None:
        """Undo `drain`. A node that an administrator cordoned stays cordoned."""
        await self._connection.fetchval(_DRAIN, None)

    async def count_left(self) -> int:
        """Return the number of granted or running actions and of environments."""
        # Only CPU nodes may read environments.
        is_cpu = await self._connection.fetchval(_KIND, self._name) == "cpu"
        statements = (_COUNT_ACTIONS, _COUNT_ENVIRONMENTS) if is_cpu else (_COUNT_ACTIONS,)
        return sum([int(await self._connection.fetchval(statement, self._name)) for statement in statements])

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
