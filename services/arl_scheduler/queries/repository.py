"""Statements of the scheduler. Every write is guarded by the leader's term, the state and the fence."""

import json
from collections.abc import Collection, Mapping, Sequence, Set
from uuid import UUID

from sqlalchemy import text

from arl_core.control.reclaim import ReclaimDecision
from arl_core.domain.model import Fence, Grant
from arl_core.domain.states import ActionOutcome
from arl_scheduler.queries.image_queries import IMAGE_ROWS
from arl_scheduler.queries.poll_result import PollResult, ResizeUpdate, parse_poll_result, parse_queued_rows
from arl_store.tx import ReadTx, Row, WriteTx
from arl_wire.internal.scheduler import QueuedActionRow

__all__ = [
    "FIRST_PAGE",
    "PagePosition",
    "ensure_partitions",
    "grant",
    "mark_environments_lost",
    "poll",
    "queued_before",
    "reclaim",
    "resize",
    "settle_queued",
    "still_queued",
]


PagePosition = tuple[int, UUID]
"""admitted_xid and id of a queued row: the order of pages, which the index of queued rows provides."""
FIRST_PAGE: PagePosition = (0, UUID(int=0))


SETTLE_PAGE = 1000
"""Maximum queued actions that one iteration of the leader settles. A client may cancel tens of thousands at once, and
rounds for other tasks must run in between.
"""

_TIME_LIMIT_S = """case when s.cpu_sharing is null then least(s.timeout_s, s.wall_timeout_s)
                else coalesce(s.wall_timeout_s, s.timeout_s) end"""
"""Real time after which an action has ended. With shared cores, `timeout_s` alone is only an estimate of it."""

# One statement is one snapshot, so the mark that it returns covers exactly the rows that it did not see. A row whose
# transaction was open then has admitted_xid >= mark, and a later poll reads it. An environment that ended and whose
# deletion was requested is no row's environment, and a new leader does not read it.
_QUEUED = f"""
    select a.id, a.queue_id, a.kind, a.trajectory, a.grant_no,
           (select id from environments where id = a.environment_id
               and (delete_requested_at is null or coalesce(ended_at, lost_at) is null)) as environment_id,
           extract(epoch from a.created_at)::float8 as submitted,
           extract(epoch from a.deadline_at)::float8 as deadline,
           s.class_key, s.shape, s.demand, s.elastic, s.cpu_sharing, s.environment, s.priority,
           {_TIME_LIMIT_S} as timeout_s, s.gang, s.step, s.hints
      from actions as a
      join action_specs as s using (id)
     where a.state = 'queued'
"""  # noqa: S608 - a constant of this module

POLL = text(f"""
    select extract(epoch from now())::float8 as now,
           pg_snapshot_xmin(pg_current_snapshot())::text as mark,
           (select coalesce(json_agg(q), '[]')::text
              from ({_QUEUED}
                       and a.admitted_xid >= case when :in_pages then pg_snapshot_xmin(pg_current_snapshot())
                                                  else cast(cast(:mark as text) as xid8) end) as q) as queued,
           (select coalesce(json_agg(h), '[]')::text
              from (select a.id, a.grant_no, a.state, a.queue_id, a.trajectory, s.class_key, a.node_id, a.node_epoch,
                           a.amounts, a.amounts_seq, a.environment_id, a.failures, a.retries,
                           -- A leader that begins may have seen none of their class in the queue.
                           case when :in_pages
                                then json_build_object('kind', a.kind, 'class_key', s.class_key, 'shape', s.shape,
                                                       'demand', s.demand, 'elastic', s.elastic,
                                                       'cpu_sharing', s.cpu_sharing,
                                                       'environment', s.environment,
                                                       'step', s.step, 'hints', s.hints,
                                                       'timeout_s', {_TIME_LIMIT_S}) end as spec,
                           extract(epoch from a.granted_at)::float8 as granted,
                           extract(epoch from a.started_at)::float8 as started
                      from actions as a
                      join action_specs as s using (id)
                     where a.state in ('granted', 'running')) as h) as held,
           (select coalesce(json_agg(id), '[]')::text
              from (select id
                      from actions
                     where state = 'queued'
                       and state <> 'settled' -- so that the partial index of cancel wishes serves this
                       and cancel_requested_at is not null
                     limit {SETTLE_PAGE}) as c) as cancelled,
           (select coalesce(json_agg(n), '[]')::text
              from (select nodes.id, name, kind, url, credential_id, nodes.epoch, capacity, rates, enforced, templates,
                           (select coalesce(json_agg(s ->> 'name'), '[]')
                              from jsonb_array_elements(services) as s
                             where s ->> 'state' in ('resident', 'restoring')) as resident,
                           cordoned_at is not null as closed,
                           coalesce(drain_deadline_at <= now(), false) as drained,
                           extract(epoch from ends_at)::float8 as ends_at,
                           extract(epoch from greatest(last_beat, pg_postmaster_start_time()))::float8 as last_sign,
                           reclaimable_milli
                      from nodes
                      join node_beats on node_beats.node_id = nodes.id and node_beats.epoch = nodes.epoch
                     order by nodes.id) as n) as nodes,
           (select coalesce(json_agg(id), '[]')::text from queues where paused_at is not null) as paused,
           (select coalesce(json_agg(q), '[]')::text
              from (select id, quota from queues where quota is not null) as q) as quotas,
           (select coalesce(json_agg(w), '[]')::text
              from (select queues.id, projects.id as project, queues.weight, projects.weight as project_weight
                      from queues
                      join projects on projects.id = queues.project_id) as w) as weights,
           (select coalesce(json_agg(e), '[]')::text
              from (select id, queue_id, trajectory, node_id, memory_mib, disk_mib,
                           extract(epoch from created_at)::float8 as created,
                           ended_at is not null or lost_at is not null as gone, end_reason,
                           delete_requested_at is not null as deleted,
                           extract(epoch from coalesce(delete_requested_at, ended_at, lost_at))::float8 as ended
                      from environments
                     where changed_xid >= cast(cast(:mark as text) as xid8)
                       and (cast(:mark as text) <> '0' or delete_requested_at is null
                            or (ended_at is null and lost_at is null))
                     order by changed_xid) as e) as environments,
           (select coalesce(json_agg(t), '[]')::text
              from (select queue_id, step, extract(epoch from ended_at)::float8 as ended
                      from training_steps
                     where changed_xid >= cast(cast(:mark as text) as xid8)
                       and ended_at > now() - interval '1 day') as t) as ended_steps,
           ({IMAGE_ROWS}) as images
""")  # noqa: S608 - constants of this module

# Rows queued before a mark: no transaction below it is open, so their number only decreases. A row that is queued or
# re-queued afterwards has a later admitted_xid, and the poll that starts at the mark reads it.
QUEUED_BEFORE = text(f"""
    select json_agg(page)::text as queued, count(*) as found,
           (array_agg(page.xid::text order by page.xid desc, page.id desc))[1] as last_xid,
           (array_agg(page.id order by page.xid desc, page.id desc))[1] as last_id
      from ({_QUEUED.replace("select ", "select a.admitted_xid as xid, ", 1)}
               and a.admitted_xid < cast(cast(:mark as text) as xid8)
               and a.admitted_xid >= cast(cast(:xid as text) as xid8)
               and (a.admitted_xid, a.id) > (cast(cast(:xid as text) as xid8), cast(:id as uuid))
             order by a.admitted_xid, a.id
             limit :limit) as page
""")  # noqa: S608 - constants of this module

# An environment whose deletion was requested takes no more actions, even if its notification is late. Of a gang, all
# actions are granted or none.
GRANT = text("""
    with possible as (
        select d.*
          from actions as a
          join unnest(cast(:ids as uuid[]), cast(:grant_nos as int[]), cast(:node_ids as int[]),
                      cast(:node_epochs as uuid[]), cast(:environment_ids as uuid[]), cast(:amounts as text[]),
                      cast(:gangs as uuid[]), cast(:criticals as boolean[]))
               as d (id, grant_no, node_id, node_epoch, environment_id, amounts, gang, is_critical) on d.id = a.id
         where a.state = 'queued'
           and a.grant_no = d.grant_no - 1
           and a.cancel_requested_at is null
           and (a.deadline_at is null or a.deadline_at > now())
           and not exists (select from environments as e where e.id = d.environment_id
                                                           and e.delete_requested_at is not null)
           and not exists (select from queues as q where q.id = a.queue_id and q.paused_at is not null)
           and (exists (select from nodes as n where n.id = d.node_id and n.cordoned_at is null)
                or exists (select from environments as e where e.id = d.environment_id and e.node_id = d.node_id))
         order by a.id
           for no key update of a
    ), asked as (
        select gang, count(*) as members from unnest(cast(:gangs as uuid[])) as g (gang) group by gang
    ), counted as (
        select *, count(*) over (partition by gang) as members from possible
    ), decided as (
        select d.*
          from counted as d
          left join asked using (gang)
         where d.gang is null
            or d.members = asked.members
    )
    update actions as a
       set state = 'granted', grant_no = d.grant_no, node_id = d.node_id, node_epoch = d.node_epoch,
           environment_id = d.environment_id, amounts = d.amounts::jsonb, amounts_seq = 0,
           granted_at = now(), started_at = null, is_critical = d.is_critical
      from decided as d
     where a.id = d.id
 returning a.id, a.grant_no
""")

STILL_QUEUED = text("""
    select a.id
      from actions as a
      join unnest(cast(:ids as uuid[]), cast(:grant_nos as int[])) as d (id, grant_no) on d.id = a.id
     where a.state = 'queued'
       and a.grant_no = d.grant_no - 1
""")

_SETTLED = "a.id, a.queue_id, a.kind, a.outcome, a.reason, a.created_at, a.granted_at, a.settled_at, a.run_us"

SETTLE_QUEUED = text(f"""
    with due as (
        select d.*
          from actions as a
          join unnest(cast(:ids as uuid[]), cast(:outcomes as text[]), cast(:reasons as text[]))
               as d (id, outcome, reason) using (id)
         where a.state = 'queued'
           and (d.outcome <> 'cancelled' or a.cancel_requested_at is not null or d.reason is not null)
           and (d.outcome <> 'deadline_in_queue' or a.deadline_at <= now() or d.reason is not null)
         order by a.id
           for no key update of a
    )
    update actions as a
       set state = 'settled', outcome = d.outcome, reason = d.reason, settled_at = now()
      from due as d
     where a.id = d.id
 returning {_SETTLED}
""")  # noqa: S608 - a constant of this module

# The reason of a re-queued attempt is stored with the attempt; a trigger removes it from the action.
RECLAIM = text(f"""
    with decided as (
        select d.*, (a.amounts ->> 'cpu_milli')::int as cpu_milli
          from actions as a
          join unnest(cast(:ids as uuid[]), cast(:grant_nos as int[]), cast(:requeues as boolean[]),
                      cast(:states as text[]), cast(:faileds as boolean[]), cast(:reasons as text[]))
               as d (id, grant_no, requeue, state, failed, reason) using (id, grant_no)
         where a.state = d.state -- what began meanwhile is judged by the next poll
         order by a.id
           for no key update of a
    )
    update actions as a
       set state = case when d.requeue then 'queued' else 'settled' end,
           outcome = case when d.requeue then null else 'infra_error' end,
           reason = d.reason,
           failures = a.failures + d.failed::int,
           admitted_xid = case when d.requeue then pg_current_xact_id() else a.admitted_xid end,
           settled_at = case when d.requeue then null else now() end
      from decided as d
     where a.id = d.id
 returning {_SETTLED}, a.grant_no, a.state,
           coalesce(d.cpu_milli * extract(epoch from now() - a.granted_at), 0)::float8 / 1000 as allocated_core_s
""")  # noqa: S608 - a constant of this module

# A manager's confirmation may have the number that the row has: for a growth that it never received.
RESIZE = text("""
    with decided as (
        select d.*
          from actions as a
          join unnest(cast(:ids as uuid[]), cast(:grant_nos as int[]), cast(:amounts as text[]), cast(:seqs as int[]))
               as d (id, grant_no, amounts, seq) using (id, grant_no)
         where a.state = 'running'
           and (a.amounts_seq < d.seq or (:confirmed and a.amounts_seq = d.seq))
         order by a.id
           for no key update of a
    )
    update actions as a
       set amounts = d.amounts::jsonb, amounts_seq = d.seq
      from decided as d
     where a.id = d.id
 returning a.id, a.grant_no
""")

MARK_ENVIRONMENTS_LOST = text("""
    with away as (
        select id, case when drain_deadline_at <= now() then 'node_drained' else 'node_away' end as reason
          from nodes
         where id = any(cast(:node_ids as int[]))
           and (drain_deadline_at <= now()
                or not exists (select from node_beats
                                where node_beats.node_id = nodes.id
                                  and last_beat > now() - make_interval(secs => :away_s)))
    )
    update environments
       set lost_at = now(), end_reason = away.reason, changed_xid = pg_current_xact_id()
      from away
     where node_id = away.id
       and ended_at is null
       and lost_at is null
""")

LOCK_LIMIT = text("set local lock_timeout = '100ms'")
ENSURE_PARTITIONS = text("select ensure_partitions((now() at time zone 'utc')::date - 1, :days)")


async def still_queued(tx: ReadTx, refused: Mapping[UUID, int]) -> set[UUID]:
    """Return the actions that are still queued under the given grant_no."""
    rows = await tx.fetch(STILL_QUEUED, {"ids": list(refused), "grant_nos": list(refused.values())})
    return {row.id for row in rows}


async def poll(tx: ReadTx, *, checkpoint: int, in_pages: bool = False, images: Collection[str] = ()) -> PollResult:
    """Read everything that changed since `checkpoint`, or everything if it is 0, and the rows of `images`.

    `in_pages` omits rows queued before the returned checkpoint; `queued_before` reads them.
    """
    rows = await tx.fetch(POLL, {"mark": str(checkpoint), "in_pages": in_pages, "images": sorted(images)})
    return parse_poll_result(rows[0])


async def queued_before(
    tx: ReadTx, *, checkpoint: int, after: PagePosition, limit: int
) -> tuple[list[QueuedActionRow], PagePosition | None]:
    """Return the next page of rows queued before `checkpoint`, and the position of the page after it, or None."""
    row = (
        await tx.fetch(QUEUED_BEFORE, {"mark": str(checkpoint), "xid": str(after[0]), "id": after[1], "limit": limit})
    )[0]
    if row.found == 0:
        return [], None
    return parse_queued_rows(row.queued), (int(row.last_xid), row.last_id) if row.found == limit else None


async def grant(
    tx: WriteTx, grants: Sequence[Grant], *, epochs: Mapping[int, UUID], critical: Set[Fence] = frozenset()
) -> frozenset[Fence]:
    """Grant actions. Return the fences that succeeded; the other actions were cancelled, late or no longer queued."""
    rows = await tx.fetch(
        GRANT,
        {
            "ids": [grant.fence.action_id for grant in grants],
            "grant_nos": [grant.fence.grant_no for grant in grants],
            "node_ids": [grant.node for grant in grants],
            "node_epochs": [epochs[grant.node] for grant in grants],
            "environment_ids": [grant.environment for grant in grants],
            "amounts": [json.dumps(grant.resources) for grant in grants],
            "gangs": [grant.gang for grant in grants],
            "criticals": [grant.fence in critical for grant in grants],
        },
    )
    return frozenset(Fence(row.id, row.grant_no) for row in rows)


async def settle_queued(tx: WriteTx, due: Mapping[UUID, tuple[ActionOutcome, str | None]]) -> Sequence[Row]:
    """Settle queued actions with these outcomes and reasons. Return the rows that settled."""
    ids = sorted(due)
    return await tx.fetch(
        SETTLE_QUEUED,
        {"ids": ids, "outcomes": [due[id][0].value for id in ids], "reasons": [due[id][1] for id in ids]},
    )


async def reclaim(tx: WriteTx, decisions: Sequence[ReclaimDecision]) -> Sequence[Row]:
    """Apply reclaim decisions. Return the changed rows with the core-seconds that the attempts had allocated."""
    return await tx.fetch(
        RECLAIM,
        {
            "ids": [verdict.fence.action_id for verdict in decisions],
            "grant_nos": [verdict.fence.grant_no for verdict in decisions],
            "requeues": [verdict.requeue for verdict in decisions],
            "states": [verdict.state.value for verdict in decisions],
            "faileds": [verdict.is_failure for verdict in decisions],
            "reasons": [verdict.reason for verdict in decisions],
        },
    )


async def resize(tx: WriteTx, changes: Sequence[ResizeUpdate], *, confirmed: bool) -> frozenset[Fence]:
    """Resize running actions. Return the fences that succeeded.

    `confirmed` resizes are the managers' answers; the others are growths to notify.
    """
    rows = await tx.fetch(
        RESIZE,
        {
            "ids": [change.fence.action_id for change in changes],
            "grant_nos": [change.fence.grant_no for change in changes],
            "amounts": [json.dumps(change.resources) for change in changes],
            "seqs": [change.seq for change in changes],
            "confirmed": confirmed,
        },
    )
    return frozenset(Fence(row.id, row.grant_no) for row in rows)


async def mark_environments_lost(tx: WriteTx, nodes: Sequence[int], *, away_s: float) -> int:
    """Mark the environments of these nodes as lost. Return the number of changed rows."""
    return await tx.execute(MARK_ENVIRONMENTS_LOST, {"node_ids": sorted(nodes), "away_s": away_s})


async def ensure_partitions(tx: WriteTx, *, days: int) -> None:
    """Create partitions with a short lock timeout. Waiting longer would block later statements, and days are left."""
    await tx.execute(LOCK_LIMIT)
    await tx.first(ENSURE_PARTITIONS, {"days": days})
