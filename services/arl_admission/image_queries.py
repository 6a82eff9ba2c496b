"""Statements that request pulls and removals of images."""

from collections.abc import Sequence

from sqlalchemy import text

from arl_store.tx import WriteTx

__all__ = ["request_pulls", "request_removals"]

REQUEST_PULLS = text("""
    insert into node_images (node_id, name, state)
    select n.id, i.name, 'wanted'
      from nodes as n
     cross join unnest(cast(:images as text[])) as i (name)
     where n.name = any(cast(:nodes as text[]))
     order by n.id, i.name
        on conflict (node_id, name) do update
       set state = 'wanted', bytes_done = 0, reason = null, message = null, remove_requested_at = null,
           changed_at = now()
     where node_images.state in ('ready', 'failed')
""")
REQUEST_REMOVALS = text("""
    with asked as (
        select node_id, name
          from node_images
         where name = any(cast(:images as text[]))
         order by node_id, name
           for no key update
    )
    update node_images as i
       set remove_requested_at = now()
      from asked
     where i.node_id = asked.node_id
       and i.name = asked.name
""")


async def request_pulls(tx: WriteTx, images: Sequence[str], nodes: Sequence[str]) -> int:
    """Request pulls on nodes by name. Return the number of requests; a pull in progress is not requested again."""
    return await tx.execute(REQUEST_PULLS, {"images": sorted(set(images)), "nodes": list(nodes)})


async def request_removals(tx: WriteTx, images: Sequence[str]) -> int:
    """Request removals from all nodes. Return the number of requests."""
    return await tx.execute(REQUEST_REMOVALS, {"images": list(images)})
