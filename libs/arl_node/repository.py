"""Statements shared by all managers. Every transition names the node's epoch and the fence."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import TextClause, text

from arl_core.domain.model import Fence
from arl_store.tx import ReadTx, Row, WriteTx

__all__ = [
    "ACTIVE_ON_NODE",
    "EDGE_ROWS",
    "GRANTED_TO_NODE",
    "RENEW_LEASE",
    "NodeNameTaken",
    "fence_columns",
    "load_statement",
    "other_name_holder",
    "refuse",
    "register",
    "reported_edge",
    "start_statement",
]

RENEW_LEASE = "update node_beats set last_beat = now() where node_id = $1 and epoch = $2"
"""Statement for asyncpg: the heartbeat has a separate connection in a separate thread."""

LOCK_NODE_NAME = text("select pg_advisory_xact_lock(hashtext('tangram.node.' || cast(:name as text)))")

OTHER_NAME_HOLDER = text("""
    select n.url, b.last_beat
      from nodes as n
      join node_beats as b on b.node_id = n.id
     where n.name = :name
       and n.url <> :url
       and b.epoch <> :epoch
       and greatest(b.last_beat, pg_postmaster_start_time()) > now() - make_interval(secs => :ttl_s)
""")
"""Query of another node with a valid lease on a name. Time in which Postgres was down does not expire a lease."""

REGISTER = text("""
    insert into nodes (name, kind, url, epoch, driver, capacity, topology, enforced, templates, ends_at)
    values (:name, :kind, :url, :epoch, :driver, cast(:capacity as jsonb), cast(:topology as jsonb),
            cast(:enforced as jsonb), cast(:templates as jsonb),
            now() + make_interval(secs => cast(:ends_in_s as float8)))
        on conflict (name) do update
       set url = excluded.url, epoch = excluded.epoch, driver = excluded.driver, capacity = excluded.capacity,
           topology = excluded.topology, enforced = excluded.enforced, templates = excluded.templates,
           ends_at = excluded.ends_at, registered_at = now()
 returning id
""")

FIRST_BEAT = text("""
    insert into node_beats (node_id, epoch, last_beat)
    values (:node_id, :epoch, now())
        on conflict (node_id) do update
       set epoch = excluded.epoch, last_beat = now(), reclaimable_milli = 0
""")

GRANTED_TO_NODE = """with ours as (
        select a.id
          from actions as a
          join unnest(cast(:ids as uuid[]), cast(:grant_nos as int[])) as g (id, grant_no) using (id, grant_no)
         where a.node_epoch = :epoch
           and a.state = 'granted'
         order by a.id
           for no key update of a
    )"""
"""Common start of the statements on granted actions."""

ACTIVE_ON_NODE = """select coalesce(json_agg(g), '[]')::text
              from (select id, grant_no, state, amounts, amounts_seq, environment_id, is_critical,
                           cancel_requested_at is not null as cancel,
                           extract(epoch from now() - granted_at)::float8 as granted_ago_s
                      from actions
                     where node_id = :node_id
                       and node_epoch = :epoch
                       and state in ('granted', 'running')) as g"""
"""Query of a node's granted and running rows, for its poll."""

_SPEC_COLUMNS = "s.timeout_s, s.payload::text as payload"

_REPORTED_EDGE = """ours as (
        select a.id, r.outcome, r.reason, r.run_us, {counted_us} as counted_us,
               r.outcome = 'infra_error' and a.failures < a.retries and a.cancel_requested_at is null
               and {may_run_again} as retry
          from actions as a
          join report as r using (id, grant_no)
         where a.node_epoch = :epoch
           and a.state in ('granted', 'running')
         order by a.id
           for no key update of a
    ), edge as (
        update actions as a
           set state = case when ours.retry then 'queued' else 'settled' end,
               outcome = case when ours.retry then null else ours.outcome end,
               reason = ours.reason,
               failures = a.failures + (ours.outcome = 'infra_error')::int,
               admitted_xid = case when ours.retry then pg_current_xact_id() else a.admitted_xid end,
               run_us = case when ours.retry then null else ours.run_us end,
               counted_us = case when ours.retry then null else ours.counted_us end,
               settled_at = case when ours.retry then null else now() end
          from ours
         where a.id = ours.id
     returning a.id, a.grant_no, a.state, a.environment_id, a.queue_id, a.kind, a.outcome, a.reason, a.created_at,
               a.granted_at, a.settled_at, a.run_us
    )"""

EDGE_ROWS = """select id, grant_no, state, queue_id, kind, outcome, reason, created_at, granted_at, settled_at, run_us
      from edge"""
"""End of a statement with `reported_edge`: the changed rows, from which `arl_node.grants` makes its result."""

REFUSE = text(f"""
    {GRANTED_TO_NODE}
    update actions as a
       set state = 'queued', reason = 'refused', admitted_xid = pg_current_xact_id()
      from ours
     where a.id = ours.id
""")  # noqa: S608 - constants of this module


def start_statement(extra_columns: str) -> TextClause:
    """Return the statement of `granted -> running` for fences granted to this node; it returns their specs.

    `extra_columns` begins with a comma and names further columns of `action_specs` `s`.
    """
    return text(f"""
    {GRANTED_TO_NODE}, started as (
        update actions as a
           set state = 'running', started_at = now()
          from ours
         where a.id = ours.id
     returning a.id, a.grant_no, a.cancel_requested_at is not null as cancel
    )
    select started.id, started.grant_no, started.cancel, {_SPEC_COLUMNS}{extra_columns}
      from started
      join action_specs as s using (id)
""")  # noqa: S608 - constants of modules


def load_statement(extra_columns: str) -> TextClause:
    """Return the query of running rows of this node, with the columns of `start_statement`."""
    return text(f"""
    select a.id, a.grant_no, a.cancel_requested_at is not null as cancel, {_SPEC_COLUMNS}{extra_columns}
      from actions as a
      join action_specs as s using (id)
     where a.id = any(cast(:ids as uuid[]))
       and a.node_epoch = :epoch
       and a.state = 'running'
""")  # noqa: S608 - constants of modules


def reported_edge(is_retryable: str = "true", *, counted_us: str = "null::bigint") -> str:
    """Return the parts `ours` and `edge` of a statement that settles its part `report` or re-queues retryable attempts.

    `report` has id, grant_no, outcome, reason and run_us. `is_retryable` is a condition on actions `a` and report `r`.
    `counted_us` is an expression of the time that counts for the action's timeout; null if it is the run time.
    """
    return _REPORTED_EDGE.format(may_run_again=is_retryable, counted_us=counted_us)


class NodeNameTaken(RuntimeError):
    """Another live node, at another address, has this name. Two nodes with one name would take each other's lease."""

    def __init__(self, name: str, url: str) -> None:
        super().__init__(
            f"another live node at {url} has the name {name}. Give this node a unique name (TANGRAM_NODE_NAME), or"
            " stop the other one first"
        )


async def other_name_holder(tx: ReadTx, node: Mapping[str, Any], *, ttl_s: float) -> Row | None:
    """Return `url` and `last_beat` of another node with a valid lease on the name, or None."""
    return await tx.first(OTHER_NAME_HOLDER, {key: node[key] for key in ("name", "url", "epoch")} | {"ttl_s": ttl_s})


async def register(tx: WriteTx, node: Mapping[str, Any], *, ttl_s: float, ends_in_s: float | None = None) -> int:
    """Register a node under its epoch with a first beat. Return its id.

    `ends_in_s` are the seconds until its machine ends it; None if it has no known end.

    Raises `NodeNameTaken` if another node has the name.
    """
    await tx.first(LOCK_NODE_NAME, {"name": node["name"]})
    holder = await other_name_holder(tx, node, ttl_s=ttl_s)
    if holder is not None:
        raise NodeNameTaken(node["name"], holder.url)
    row = await tx.first(REGISTER, {**node, "ends_in_s": ends_in_s})
    if row is None:
        raise RuntimeError("the upsert of the node returned no row")
    await tx.execute(FIRST_BEAT, {"node_id": row.id, "epoch": node["epoch"]})
    return int(row.id)


async def refuse(tx: WriteTx, fences: Sequence[Fence], *, epoch: UUID) -> int:
    """Re-queue granted actions that this node refuses; return the number of changed rows."""
    return await tx.execute(REFUSE, {**fence_columns(fences), "epoch": epoch})


def fence_columns(fences: Sequence[Fence]) -> dict[str, Any]:
    """Return the fences as the parameters `ids` and `grant_nos`."""
    return {"ids": [fence.action_id for fence in fences], "grant_nos": [fence.grant_no for fence in fences]}
