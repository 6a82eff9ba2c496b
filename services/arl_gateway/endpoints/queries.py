"""Statements about endpoints."""

import json
from collections.abc import Sequence

from sqlalchemy import text

from arl_gateway.reward_services.queries import NODE_TTL_S
from arl_store.tx import ReadTx, Row

__all__ = ["endpoints_by_node", "has_endpoint"]

BROKER_TIMEOUT_S = 30.0

# Granted and running actions occupy calls; their rows name the endpoints.
ENDPOINTS_BY_NODE = text("""
    select n.name as node, e.value::text as said,
           b.last_beat > now() - make_interval(secs => :ttl_s) and b.epoch = n.epoch
           and n.cordoned_at is null and n.drain_requested_at is null as available,
           (select count(*)
              from actions as a
             where a.node_id = n.id
               and a.state in ('granted', 'running')
               and a.amounts ? ('calls:' || (e.value ->> 'name'))) as in_flight
      from nodes as n
      join node_beats as b on b.node_id = n.id,
           jsonb_array_elements(n.endpoints) as e
     where cast(:name as text) is null or e.value ->> 'name' = :name
     order by e.value ->> 'name', n.name
""")

HAS_ENDPOINT = text("""
    select exists (select
                     from nodes as n
                     join node_beats as b on b.node_id = n.id
                    where n.endpoints @> cast(:said as jsonb)
                      and b.last_beat > now() - make_interval(secs => :silent_s)) as there
""")


async def has_endpoint(tx: ReadTx, name: str) -> bool:
    """Return True if a broker that is alive, or restarts, has the endpoint."""
    asked = {"said": json.dumps([{"name": name}]), "silent_s": BROKER_TIMEOUT_S}
    return bool((await tx.fetch(HAS_ENDPOINT, asked))[0].there)


async def endpoints_by_node(tx: ReadTx, *, name: str | None = None) -> Sequence[Row]:
    """Return one row for each endpoint of each broker, ordered by endpoint."""
    return await tx.fetch(ENDPOINTS_BY_NODE, {"name": name, "ttl_s": NODE_TTL_S})
