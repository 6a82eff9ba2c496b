"""Statements about nodes."""

from collections.abc import Sequence

from sqlalchemy import text

from arl_admission.queries import LOCK_DESIRED_STATE
from arl_store.tx import ReadTx, Row, WriteTx
from arl_wire.internal.admission import InternalChangeNodeRequest

__all__ = ["change_node", "node_capacities", "remove_node"]

NODE_TTL_S = 10.0

# A removed node has no heartbeats.
CHANGE_NODE = text("""
    update nodes
       set cordoned_at = case when :cordoned then coalesce(cordoned_at, now()) end,
           drain_requested_at = case when cast(:drain_deadline_s as float8) is not null then now()
                                     when :cordoned then drain_requested_at end,
           drain_deadline_at = case when cast(:drain_deadline_s as float8) is not null
                                    then now() + make_interval(secs => :drain_deadline_s)
                                    when :cordoned then drain_deadline_at end,
           self_drained_at = null
     where name = :name
       and exists (select from node_beats where node_id = nodes.id)
""")

# A registration locks the row until its first heartbeat has committed.
LOCK_NODE = text("""
    select n.id
      from nodes as n
      join node_beats as b on b.node_id = n.id
     where n.name = :name
       for no key update of n
""")

COUNT_NODE_USE = text("""
    select (select count(*) from actions where node_id = :id and state in ('granted', 'running')) as actions,
           (select count(*) from environments
             where node_id = :id and ended_at is null and lost_at is null) as environments
""")

# Without heartbeats the node has no lease and is in no list. Its row remains for the actions that ran there.
REMOVE_DEAD_NODE = text("""
    delete from node_beats
     where node_id = :id
       and last_beat < now() - make_interval(secs => :ttl_s)
""")

CLEAR_NODE_REQUESTS = text("""
    update nodes
       set cordoned_at = null, drain_requested_at = null, drain_deadline_at = null, self_drained_at = null
     where id = :id
""")

REVOKE_NODE = text("select revoke_node(:name) as is_revoked")

NODE_CAPACITIES = text("""
    select n.kind, n.capacity::text as capacity, n.enforced::text as enforced, n.templates::text as templates,
           n.services::text as services, n.endpoints::text as endpoints,
           b.last_beat > now() - make_interval(secs => :silent_s) as may_return
      from nodes as n
      join node_beats as b on b.node_id = n.id
     where n.kind in ('gpu', 'api')
        or b.last_beat > now() - make_interval(secs => :silent_s)
     order by n.id
""")


async def change_node(tx: WriteTx, request: InternalChangeNodeRequest) -> int:
    """Change a node. Return 1, or 0 if it does not exist.

    No grant that did not see the change commits afterwards.
    """
    await tx.first(LOCK_DESIRED_STATE)
    return await tx.execute(CHANGE_NODE, request.model_dump())


async def remove_node(tx: WriteTx, name: str) -> str | None:
    """Remove a node. Return the reason for a refusal, or None. The credentials of a node that joined end.

    Raises LookupError if the node does not exist.
    """
    await tx.first(LOCK_DESIRED_STATE)
    node = await tx.first(LOCK_NODE, {"name": name})
    if node is None:
        revoked = await tx.first(REVOKE_NODE, {"name": name})
        if revoked is not None and revoked.is_revoked:
            return None  # it got its credentials, or a token for them, but has never registered
        raise LookupError(name)
    left = await tx.first(COUNT_NODE_USE, {"id": node.id})
    if left is not None and left.actions:
        return f"it has {left.actions} unsettled actions"
    if left is not None and left.environments:
        return f"it has {left.environments} environments that are not lost"
    if not await tx.execute(REMOVE_DEAD_NODE, {"id": node.id, "ttl_s": NODE_TTL_S}):
        return "it is alive"
    await tx.execute(CLEAR_NODE_REQUESTS, {"id": node.id})
    await tx.first(REVOKE_NODE, {"name": name})
    return None


async def node_capacities(tx: ReadTx, *, silent_s: float) -> Sequence[Row]:
    """Return the nodes that may still return: those with a heartbeat within `silent_s` seconds.

    Other nodes with services and endpoints have `may_return` false; actions may wait for their names.
    """
    return await tx.fetch(NODE_CAPACITIES, {"silent_s": silent_s})
