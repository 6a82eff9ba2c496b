"""Statements about reward services."""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import text

from arl_store.tx import ReadTx, Row

__all__ = ["count_cpu_nodes", "desired_services", "directory_entries", "services_by_node"]

NODE_TTL_S = 10.0

# Granted and running actions occupy slots; their rows name the services.
SERVICES_BY_NODE = text("""
    select n.name as node, s.value::text as said,
           b.last_beat > now() - make_interval(secs => :ttl_s) and b.epoch = n.epoch
           and n.cordoned_at is null and n.drain_requested_at is null
           and coalesce((s.value ->> 'slots')::int, 1) > 0 as available,
           (select count(*)
              from actions as a
             where a.node_id = n.id
               and a.state in ('granted', 'running')
               and a.amounts ? ('slots:' || (s.value ->> 'name'))) as in_flight
      from nodes as n
      join node_beats as b on b.node_id = n.id,
           jsonb_array_elements(n.services) as s
     where cast(:name as text) is null or s.value ->> 'name' = :name
     order by s.value ->> 'name', n.name
""")


DESIRED_SERVICES = text("""
    select name, kind, source, options::text as options, pinned, drained_at is not null as drained,
           extract(epoch from registered_at)::float8 as registered_at
      from services
     where cast(:name as text) is null or name = :name
     order by name
""")


_LIVE_CPU_NODES = """from nodes as n join node_beats as b on b.node_id = n.id and b.epoch = n.epoch
                    where n.kind = 'cpu'
                      and n.cordoned_at is null
                      and b.last_beat > now() - make_interval(secs => :ttl_s)"""

COUNT_CPU_NODES = text(f"""
    select count(*) as live,
           count(*) filter (where n.enforced @> '[{{"name": "math_verifier", "level": "absent"}}]') as without_math
    {_LIVE_CPU_NODES}
""")

# A node may not know yet that a service was removed, or removed and registered again. A node without slots only reports
# the reason.
DIRECTORY_ENTRIES = text(f"""
    with registered as (
        select name, kind, options, extract(epoch from registered_at)::float8 as registered_at
          from services
         where kind is not null
    ), on_nodes as (
        select distinct on (name) s.value ->> 'name' as name, s.value ->> 'kind' as kind
          from nodes as n
          join node_beats as b on b.node_id = n.id
          join jsonb_array_elements(n.services) as s on true
          left join registered as r on r.name = s.value ->> 'name'
         where coalesce((s.value ->> 'slots')::int, 1) > 0
           and (not coalesce((s.value ->> 'registered')::boolean, false)
                or (s.value ->> 'registered_at')::float8 = r.registered_at)
         order by name, n.name
    ), offered as (
        select name, coalesce(r.kind, o.kind) as kind, coalesce(r.options, '{{}}') as options,
               o.name is not null as is_anywhere, r.name is not null as is_registered
          from registered as r
          full join on_nodes as o using (name)
    )
    select (select coalesce(json_agg(offered), '[]')::text from offered) as services,
           exists (select {_LIVE_CPU_NODES}) as has_cpu_node
""")  # noqa: S608 - a constant of this module


async def count_cpu_nodes(tx: ReadTx) -> Row:
    """Return the number of CPU nodes that take actions, as `live`, and of those that cannot run the verifier `math`."""
    return (await tx.fetch(COUNT_CPU_NODES, {"ttl_s": NODE_TTL_S}))[0]


async def directory_entries(tx: ReadTx) -> tuple[list[dict[str, Any]], bool]:
    """Return the services that are registered or on a node, and whether a live CPU node exists."""
    row = (await tx.fetch(DIRECTORY_ENTRIES, {"ttl_s": NODE_TTL_S}))[0]
    return json.loads(row.services), bool(row.has_cpu_node)


async def desired_services(tx: ReadTx, *, name: str | None = None) -> Sequence[Row]:
    """Return the registered services, and operators' settings of any service."""
    return await tx.fetch(DESIRED_SERVICES, {"name": name})


async def services_by_node(tx: ReadTx, *, name: str | None = None) -> Sequence[Row]:
    """Return one row for each service of each node, ordered by service."""
    return await tx.fetch(SERVICES_BY_NODE, {"name": name, "ttl_s": NODE_TTL_S})
