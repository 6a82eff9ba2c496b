"""The statements that all managers share. Every edge names the node's epoch and the fence."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import text

from arl_core.fence import Fence
from arl_store.tx import WriteTx

__all__ = ["GRANTED_TO_US", "columns", "refuse", "register"]

REGISTER = text("""
    insert into nodes (name, kind, url, epoch, driver, capacity, topology, enforced, templates)
    values (:name, :kind, :url, :epoch, :driver, cast(:capacity as jsonb), cast(:topology as jsonb),
            cast(:enforced as jsonb), cast(:templates as jsonb))
        on conflict (name) do update
       set url = excluded.url, epoch = excluded.epoch, driver = excluded.driver, capacity = excluded.capacity,
           topology = excluded.topology, enforced = excluded.enforced, templates = excluded.templates,
           registered_at = now()
 returning id
""")

FIRST_BEAT = text("""
    insert into node_beats (node_id, epoch, last_beat)
    values (:node_id, :epoch, now())
        on conflict (node_id) do update
       set epoch = excluded.epoch, last_beat = now()
""")

GRANTED_TO_US = """with ours as (
        select a.id
          from actions as a
          join unnest(cast(:ids as uuid[]), cast(:grant_nos as int[])) as g (id, grant_no) using (id, grant_no)
         where a.node_epoch = :epoch
           and a.state = 'granted'
         order by a.id
           for no key update of a
    )"""
"""How a statement of a granted edge begins."""

REFUSE = text(f"""
    {GRANTED_TO_US}
    update actions as a
       set state = 'queued', reason = 'refused', admitted_xid = pg_current_xact_id()
      from ours
     where a.id = ours.id
""")  # noqa: S608 - constants of this module


async def register(tx: WriteTx, node: Mapping[str, Any]) -> int:
    """Make a node known under its epoch, with a first beat; its id."""
    row = await tx.first(REGISTER, dict(node))
    if row is None:
        raise RuntimeError("a node's upsert returned no row")
    await tx.execute(FIRST_BEAT, {"node_id": row.id, "epoch": node["epoch"]})
    return int(row.id)


async def refuse(tx: WriteTx, fences: Sequence[Fence], *, epoch: UUID) -> int:
    return await tx.execute(REFUSE, {**columns(fences), "epoch": epoch})


def columns(fences: Sequence[Fence]) -> dict[str, Any]:
    return {"ids": [fence.action_id for fence in fences], "grant_nos": [fence.grant_no for fence in fences]}
