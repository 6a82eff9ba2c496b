"""Statements about node pools. The lease of a controller is checked by the database's clock."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import text

from arl_store.tx import ReadTx, Row, WriteTx

__all__ = ["delete_pool", "list_pools", "pool_by_name", "publish_pool"]

_POOL = """
    select name, kind, engine, min_nodes, max_nodes, cores_per_node, wanted, present, ready, draining, decision, reason,
           decided_at, updated_at, controller, lease_expires_at > now() as controlled
      from pools
"""

LIST_POOLS = text(_POOL + " order by name")

POOL_BY_NAME = text(_POOL + " where name = :name")

LOCK_POOL = text(_POOL + " where name = :name for update")

# No row is returned if another controller owns the pool. Its lease is valid until it has expired here.
PUBLISH_POOL = text("""
    insert into pools as p (name, kind, engine, min_nodes, max_nodes, cores_per_node, wanted, present, ready, draining,
                            decision, reason, controller, lease_expires_at)
    values (:name, :kind, :engine, :min_nodes, :max_nodes, :cores_per_node, :wanted, :present, :ready,
            cast(:draining as text[]), :decision, :reason, :controller, now() + make_interval(secs => :lease_s))
        on conflict (name) do update
       set kind = excluded.kind, engine = excluded.engine, min_nodes = excluded.min_nodes,
           max_nodes = excluded.max_nodes, cores_per_node = excluded.cores_per_node, wanted = excluded.wanted,
           present = excluded.present, ready = excluded.ready, draining = excluded.draining,
           decision = excluded.decision, reason = excluded.reason,
           decided_at = case when p.wanted = excluded.wanted then p.decided_at else now() end,
           updated_at = now(), controller = excluded.controller, lease_expires_at = excluded.lease_expires_at
     where p.controller = excluded.controller
        or p.lease_expires_at <= now()
 returning name
""")

DELETE_POOL = text("delete from pools where name = :name and lease_expires_at <= now()")


async def list_pools(tx: ReadTx) -> Sequence[Row]:
    """Return all pools by name."""
    return await tx.fetch(LIST_POOLS)


async def pool_by_name(tx: ReadTx, name: str, *, lock: bool = False) -> Row | None:
    """Return a pool, or None. With `lock`, no other transaction changes it until the end of this one."""
    return await tx.first(LOCK_POOL if lock else POOL_BY_NAME, {"name": name})


async def publish_pool(tx: WriteTx, values: Mapping[str, Any]) -> bool:
    """Write the state of a pool and extend the lease. Return False if another controller owns the pool."""
    return await tx.first(PUBLISH_POOL, values) is not None


async def delete_pool(tx: WriteTx, name: str) -> bool:
    """Delete a pool that no controller owns. Return True if it was deleted."""
    return await tx.execute(DELETE_POOL, {"name": name}) == 1
