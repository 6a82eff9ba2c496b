"""Statements about nodes."""

from collections.abc import Sequence

from sqlalchemy import text

from arl_store.tx import ReadTx, Row

__all__ = ["list_node_images", "list_nodes", "node_by_name", "node_ids", "node_name"]

NODE_TTL_S = 10.0

_NODE = """
    select nodes.name, nodes.kind, nodes.driver, nodes.epoch, nodes.capacity::text as capacity, nodes.registered_at,
           node_beats.last_beat, node_beats.last_beat > now() - make_interval(secs => :ttl_s) as alive,
           nodes.cordoned_at is not null as cordoned, nodes.drain_deadline_at, nodes.ends_at,
           nodes.enforced::text as enforced,
           nodes.templates::text as templates,
           coalesce((select r.pool from node_roles as r
                      where r.node_name = nodes.name and r.kind = nodes.kind), 'default') as pool,
           held.running, held.allocated_cpu_milli,
           (select count(*) from environments
             where node_id = nodes.id and ended_at is null and lost_at is null) as environments
      from nodes
      join node_beats on node_beats.node_id = nodes.id
     cross join lateral (select count(*) as running,
                                coalesce(sum((amounts ->> 'cpu_milli')::int), 0) as allocated_cpu_milli
                           from actions
                          where node_id = nodes.id
                            and state in ('granted', 'running')) as held
"""

LIST_NODES = text(_NODE + " order by nodes.name")

NODE_BY_NAME = text(_NODE + " where nodes.name = :name")

NODE_IDS = text("select id, name from nodes where name = any(cast(:names as text[]))")

NODE_NAME = text("select name from nodes where id = :id")

LIST_IMAGES = text("""
    select i.name, n.name as node, i.state, i.digest, i.bytes, i.bytes_done, i.unpacked_bytes, i.reason, i.message,
           i.used_at, i.changed_at
      from node_images as i
      join nodes as n on n.id = i.node_id
     order by i.name, n.name
""")


async def list_nodes(tx: ReadTx) -> Sequence[Row]:
    """Return all nodes by name."""
    return await tx.fetch(LIST_NODES, {"ttl_s": NODE_TTL_S})


async def node_by_name(tx: ReadTx, name: str) -> Row | None:
    """Return a node, or None."""
    return await tx.first(NODE_BY_NAME, {"ttl_s": NODE_TTL_S, "name": name})


async def node_name(tx: ReadTx, node_id: int) -> str | None:
    """Return the name of a node, or None."""
    row = await tx.first(NODE_NAME, {"id": node_id})
    return row.name if row is not None else None


async def node_ids(tx: ReadTx, names: Sequence[str]) -> dict[str, int]:
    """Return the ids of the nodes that exist, by name."""
    return {row.name: row.id for row in await tx.fetch(NODE_IDS, {"names": list(names)})}


async def list_node_images(tx: ReadTx) -> Sequence[Row]:
    """Return the images of all nodes."""
    return await tx.fetch(LIST_IMAGES)
