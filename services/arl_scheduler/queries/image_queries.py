"""Statements about images on nodes. The leader requests pulls; nodes write everything else."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import text

from arl_store.tx import ReadTx, WriteTx

__all__ = ["IMAGE_ROWS", "MissingLayers", "measure_missing", "request_pulls"]

# Of the images that queued actions need, so that a poll reads no rows while none does.
IMAGE_ROWS = """
    select coalesce(json_agg(i), '[]')::text
      from (select node_id, name, state, reason, message, bytes, bytes_done,
                   extract(epoch from changed_at)::float8 as changed
              from node_images
             where name = any(cast(:images as text[]))) as i
"""

REQUEST_PULLS = text("""
    insert into node_images (node_id, name, state)
    select node_id, name, 'wanted'
      from unnest(cast(:node_ids as int[]), cast(:names as text[])) as r (node_id, name)
     order by node_id, name
        on conflict (node_id, name) do update
       set state = 'wanted', bytes_done = 0, reason = null, message = null, changed_at = now()
     where node_images.state = 'failed'
""")

# Layers of an image are known if a node has resolved it.
MEASURE_MISSING = text("""
    with wanted as (
        select distinct on (name) name, layers
          from node_images
         where name = any(cast(:names as text[]))
           and layers is not null
         order by name, changed_at desc
    ), layer as (
        select name, key as digest, value::bigint as bytes from wanted, jsonb_each_text(layers)
    ), speed as (
        select sum(bytes_done) / nullif(sum(pull_s), 0) as bytes_per_s
          from node_images
         where pull_s is not null
           and changed_at > now() - interval '1 day'
    )
    select layer.name, n.id as node_id,
           coalesce(sum(layer.bytes) filter (where l.digest is null), 0)::bigint as missing,
           (select bytes_per_s from speed)::float8 as bytes_per_s
      from layer
     cross join unnest(cast(:node_ids as int[])) as n (id)
      left join node_layers as l on l.node_id = n.id and l.digest = layer.digest
     group by layer.name, n.id
""")


@dataclass(frozen=True, slots=True)
class MissingLayers:
    """Compressed bytes that nodes lack of images whose layers are known, and the measured speed of pulls."""

    bytes: dict[tuple[str, int], int]
    """By image and node."""
    bytes_per_s: float | None = None


async def measure_missing(tx: ReadTx, names: Collection[str], nodes: Collection[int]) -> MissingLayers:
    """Return what the nodes lack of the images."""
    rows = await tx.fetch(MEASURE_MISSING, {"names": sorted(names), "node_ids": sorted(nodes)})
    speed = rows[0].bytes_per_s if rows else None
    return MissingLayers({(row.name, row.node_id): int(row.missing) for row in rows}, speed)


async def request_pulls(tx: WriteTx, pulls: Sequence[tuple[int, str]]) -> int:
    """Request pulls of images on nodes. A pull that is requested already, or an image that is there, stays."""
    return await tx.execute(
        REQUEST_PULLS, {"node_ids": [node for node, _ in pulls], "names": [name for _, name in pulls]}
    )
