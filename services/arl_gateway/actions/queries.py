"""What the gateway reads, and its own writes: keys, projects and the audit log."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import literal_column, select, text

from arl_store.tables import action_specs, actions, nodes, queues
from arl_store.tx import ReadTx, Row, WriteTx

__all__ = [
    "actions_by_id",
    "check_consistency",
    "environments_by_id",
    "has_submission_key",
    "insert_audit_log",
    "insert_key",
    "insert_project",
    "key_by_hash",
    "key_by_id",
    "list_actions",
    "list_environments",
    "list_keys",
    "list_queues",
    "queue_by_task",
    "revoke_key",
    "running_actions",
    "settled_among",
    "states_by_id",
]


KEY_BY_HASH = text("""
    select k.id, k.project_id, p.name as project, k.scopes,
           extract(epoch from k.expires_at - now())::float8 as expires_in_s
      from api_keys as k
      join projects as p on p.id = k.project_id
     where k.hash = :hash
       and k.revoked_at is null
       and (k.expires_at is null or k.expires_at > now())
""")

_KEY = """
    select k.id, k.project_id, p.name as project, k.prefix, k.scopes, k.created_at, k.expires_at, k.revoked_at
      from {keys} as k
      join projects as p on p.id = k.project_id
"""

INSERT_KEY = text(f"""
    with made as (
        insert into api_keys (project_id, prefix, hash, scopes, expires_at)
        values (:project_id, :prefix, :hash, cast(:scopes as text[]),
                now() + make_interval(secs => cast(:expires_in_s as float8)))
     returning *
    )
    {_KEY.format(keys="made")}
""")  # noqa: S608 - constants of this module

KEY_BY_ID = text(_KEY.format(keys="api_keys") + " where k.id = :id and k.project_id = :project_id")

LIST_KEYS = text(
    _KEY.format(keys="api_keys")
    + """
     where k.project_id = :project_id
       and (cast(:before as int) is null or k.id < :before)
     order by k.id desc
     limit :limit
    """
)

REVOKE_KEY = text("""
    update api_keys
       set revoked_at = now()
     where id = :id
       and project_id = :project_id
       and revoked_at is null
""")

# Each half is served by the partial index of its states; together they would be a scan of all actions.
_QUEUE = """
    with unsettled as (
        select queue_id, 1 as waiting, 0 as running
          from actions
         where state = 'queued' and project_id = :project_id
     union all
        select queue_id, 0, 1
          from actions
         where state in ('granted', 'running') and project_id = :project_id
    ), counted as (
        select queue_id, sum(waiting) as waiting, sum(running) as running from unsettled group by queue_id
    )
    select q.id, q.task, q.max_queued, q.weight, q.quota::text as quota, q.paused_at is not null as paused,
           coalesce(c.waiting, 0) as waiting, coalesce(c.running, 0) as running
      from queues as q
      left join counted as c on c.queue_id = q.id
     where q.project_id = :project_id
"""

LIST_QUEUES = text(
    _QUEUE
    + """
       and (cast(:after as int) is null or q.id > :after)
     order by q.id
     limit :limit
    """
)

QUEUE_BY_TASK = text(_QUEUE + " and q.task = :task")

INSERT_PROJECT = text("insert into projects (name) values (:name) on conflict (name) do nothing returning id")

INSERT_AUDIT_LOG = text("""
    insert into audit_log (project_id, api_key_id, verb, target, detail)
    values (:project_id, :api_key_id, :verb, :target, cast(:detail as jsonb))
""")

SETTLED_AMONG = text("select id from actions where id = any(cast(:ids as uuid[])) and state = 'settled'")

STATES_BY_ID = text("""
    select id, state = 'settled' as settled
      from actions
     where id = any(cast(:ids as uuid[]))
       and project_id = :project_id
""")

# That the ids are named thrice lets Postgres leave out partitions before it opens them: 0.15 CPU-ms instead of 0.8.
ACTIONS_BY_ID = text("""
    select a.id, a.project_id, a.kind, a.trajectory, a.environment_id, a.state, a.outcome, a.reason, a.grant_no,
           a.amounts, a.failures,
           a.cancel_requested_at, a.deadline_at, a.created_at, a.granted_at, a.started_at, a.settled_at, a.run_us,
           q.task, s.class_key, s.demand, s.elastic, s.labels, s.gang, n.name as node, n.url as node_url,
           r.id is not null as has_result, r.exit_code, r.signal, r.stdout, r.stderr, r.stdout_bytes, r.stderr_bytes,
           r.files, r.missing_files, r.cpu_us, r.peak_memory_kib, r.left_behind, r.message, r.enforcement, r.scores,
           r.response::text as response
      from actions as a
      join queues as q on q.id = a.queue_id
      join action_specs as s on s.id = a.id and s.id = any(cast(:ids as uuid[]))
      left join nodes as n on n.id = a.node_id
      left join action_results as r on r.id = a.id and r.id = any(cast(:ids as uuid[])) and a.state = 'settled'
     where a.id = any(cast(:ids as uuid[]))
""")

_ENVIRONMENT = """
    select e.id, q.task, e.trajectory, n.name as node, n.url as node_url, e.template, e.memory_mib, e.disk_mib, e.pids,
           e.idle_ttl_s, e.created_at, e.last_used_at, e.end_reason, coalesce(e.ended_at, e.lost_at) as gone_at,
           s.state, e.delete_requested_at is not null as deleted
      from environments as e
      join queues as q on q.id = e.queue_id
      join nodes as n on n.id = e.node_id,
           lateral (select case when e.ended_at is not null then 'ended'
                                when e.lost_at is not null then 'lost'
                                when e.delete_requested_at is not null then 'ending'
                                else 'live' end as state) as s
     where e.project_id = :project_id
"""

ENVIRONMENTS_BY_ID = text(_ENVIRONMENT + " and e.id = any(cast(:ids as uuid[]))")

HAS_SUBMISSION_KEY = text(
    "select exists (select from submissions where project_id = :project_id and key = any(:keys)) as known"
)

LIST_ENVIRONMENTS = text(
    _ENVIRONMENT
    + """
       and (cast(:task as text) is null or q.task = :task)
       and (cast(:trajectory as text) is null or e.trajectory = :trajectory)
       and (cast(:state as text) is null or s.state = :state)
       and (cast(:at as timestamptz) is null or (e.created_at, e.id) < (:at, cast(:id as uuid)))
     order by e.created_at desc, e.id desc
     limit :limit
    """
)

# Held amounts as the design has it: an attempt holds its cores, and memory and disk too unless the environment it
# runs in has a row; a living environment holds memory and disk. One statement is one snapshot.
CONSISTENCY_CHECK = text("""
    with attempts as (
        select a.id, a.state, a.node_id, a.node_epoch, a.environment_id, a.amounts, e.id is not null as has_home,
               e.ended_at is not null or e.lost_at is not null as home_gone
          from actions as a
          left join environments as e on e.id = a.environment_id
         where a.state in ('granted', 'running')
    ), homes as (
        select id, node_id, node_epoch, memory_mib, disk_mib
          from environments
         where ended_at is null and lost_at is null
    ), amounts as (
        select node_id, key as resource, value::bigint as amount
          from attempts, jsonb_each_text(amounts)
         where key not in ('memory_mib', 'disk_mib') or not has_home
     union all
        select node_id, 'memory_mib', memory_mib from homes
     union all
        select node_id, 'disk_mib', disk_mib from homes
    ), ledger as (
        select n.name as node, c.key as resource, c.value::bigint as capacity,
               coalesce((select sum(amount) from amounts where node_id = n.id and resource = c.key), 0)::bigint as held
          from nodes as n, jsonb_each_text(n.capacity) as c
         order by n.name, c.key
    ), findings as (
        select 'settled_without_outcome' as "check", id::text as subject, 'settled, and no outcome' as detail
          from actions where state = 'settled' and outcome is null
     union all
        select 'settled_without_result', a.id::text, 'outcome ' || a.outcome || ', and no result'
          from actions as a
         where a.state = 'settled'
           and a.outcome in ('ok', 'user_error', 'user_timeout', 'limit_exceeded')
           and not exists (select from action_results as r where r.id = a.id)
     union all
        select 'result_of_another_grant', a.id::text,
               'the row is of grant ' || a.grant_no || ', its result of grant ' || r.grant_no
          from actions as a join action_results as r using (id)
         where r.grant_no <> a.grant_no
     union all
        select 'result_before_the_end', a.id::text, 'a result, and the action is ' || a.state
          from actions as a join action_results as r using (id)
         where a.state <> 'settled'
     union all
        select 'action_without_spec', a.id::text, 'no row in action_specs'
          from actions as a
         where not exists (select from action_specs as s where s.id = a.id)
     union all
        select 'attempt_of_another_epoch', t.id::text, t.state || ' on an earlier life of node ' || n.name
          from attempts as t join nodes as n on n.id = t.node_id
         where t.node_epoch is distinct from n.epoch
     union all
        select 'attempt_without_node', t.id::text, t.state || ' on node ' || t.node_id || ', which is not there'
          from attempts as t
         where not exists (select from nodes as n where n.id = t.node_id)
     union all
        select 'attempt_in_a_gone_environment', t.id::text, t.state || ' in environment ' || t.environment_id
          from attempts as t
         where t.home_gone
     union all
        select 'shared_environment', environment_id::text, count(*) || ' attempts at once'
          from attempts
         where environment_id is not null
         group by environment_id
        having count(*) > 1
     union all
        select 'environment_of_another_epoch', h.id::text, 'lives on an earlier life of node ' || n.name
          from homes as h join nodes as n on n.id = h.node_id
         where h.node_epoch <> n.epoch
     union all
        select 'overbooked', node || ' ' || resource, 'held ' || held || ' of ' || capacity
          from ledger
         where held > capacity
    )
    select now() as at,
           (select coalesce(json_object_agg(state, total), '{}')::text
              from (select state, count(*) as total from actions group by state) as s) as actions,
           (select coalesce(json_agg(u), '[]')::text
              from (select name as node,
                           (select count(*) from attempts where node_id = nodes.id) as attempts,
                           (select count(*) from homes where node_id = nodes.id) as environments
                      from nodes
                     order by name) as u) as nodes,
           (select coalesce(json_agg(ledger), '[]')::text from ledger) as held,
           (select coalesce(json_agg(f), '[]')::text
              from (select * from findings order by "check", subject limit 1000) as f) as findings
""")

_ACTION = (
    select(
        actions,
        queues.c.task,
        *(action_specs.c.class_key, action_specs.c.demand, action_specs.c.elastic, action_specs.c.labels),
        action_specs.c.gang,
        nodes.c.name.label("node"),
    )
    .join(queues, queues.c.id == actions.c.queue_id)
    .join(action_specs, action_specs.c.id == actions.c.id)
    .outerjoin(nodes, nodes.c.id == actions.c.node_id)
)


async def key_by_hash(tx: ReadTx, digest: bytes) -> Row | None:
    return await tx.first(KEY_BY_HASH, {"hash": digest})


async def insert_key(
    tx: WriteTx, *, project_id: int, prefix: str, digest: bytes, scopes: Sequence[str], expires_in_s: int | None
) -> Row:
    row = await tx.first(
        INSERT_KEY,
        {
            "project_id": project_id,
            "prefix": prefix,
            "hash": digest,
            "scopes": list(scopes),
            "expires_in_s": expires_in_s,
        },
    )
    if row is None:
        raise RuntimeError("an insert returned no row")
    return row


async def insert_project(tx: WriteTx, name: str) -> int | None:
    """Its id; None if the name is taken."""
    row = await tx.first(INSERT_PROJECT, {"name": name})
    return int(row.id) if row is not None else None


async def insert_audit_log(
    tx: WriteTx, *, project_id: int, api_key_id: int, verb: str, target: str, detail: str
) -> None:
    await tx.execute(
        INSERT_AUDIT_LOG,
        {"project_id": project_id, "api_key_id": api_key_id, "verb": verb, "target": target, "detail": detail},
    )


async def key_by_id(tx: ReadTx, *, id: int, project_id: int) -> Row | None:
    return await tx.first(KEY_BY_ID, {"id": id, "project_id": project_id})


async def list_keys(tx: ReadTx, *, project_id: int, before: int | None, limit: int) -> Sequence[Row]:
    """Newest first."""
    return await tx.fetch(LIST_KEYS, {"project_id": project_id, "before": before, "limit": limit})


async def revoke_key(tx: WriteTx, *, id: int, project_id: int) -> bool:
    """Whether it was live until now."""
    return await tx.execute(REVOKE_KEY, {"id": id, "project_id": project_id}) > 0


async def actions_by_id(tx: ReadTx, ids: Sequence[UUID]) -> Sequence[Row]:
    """Of any project: the reader's is compared with `project_id`. A settled one comes with its result."""
    return await tx.fetch(ACTIONS_BY_ID, {"ids": list(ids)})


async def list_queues(tx: ReadTx, *, project_id: int, after: int | None, limit: int) -> Sequence[Row]:
    """In order of their making."""
    return await tx.fetch(LIST_QUEUES, {"project_id": project_id, "after": after, "limit": limit})


async def queue_by_task(tx: ReadTx, *, project_id: int, task: str) -> Row | None:
    return await tx.first(QUEUE_BY_TASK, {"project_id": project_id, "task": task})


async def states_by_id(tx: ReadTx, ids: Sequence[UUID], *, project_id: int) -> Sequence[Row]:
    return await tx.fetch(STATES_BY_ID, {"ids": list(ids), "project_id": project_id})


async def settled_among(tx: ReadTx, ids: Sequence[UUID]) -> set[UUID]:
    """One query for everybody who waits."""
    return {row.id for row in await tx.fetch(SETTLED_AMONG, {"ids": list(ids)})}


async def list_actions(
    tx: ReadTx,
    *,
    project_id: int,
    task: str | None,
    trajectory: str | None,
    state: str | None,
    before: UUID | None,
    limit: int,
) -> Sequence[Row]:
    """Newest first. Ids are in order of time, so the cursor is an id."""
    statement = _ACTION.where(actions.c.project_id == project_id, queues.c.project_id == project_id)
    if task is not None:
        statement = statement.where(queues.c.task == task)
    if trajectory is not None:
        statement = statement.where(actions.c.trajectory == trajectory)
    if state is not None:
        statement = statement.where(actions.c.state == state)
    if before is not None:
        statement = statement.where(actions.c.id < before)
    return await tx.fetch(statement.order_by(actions.c.id.desc()).limit(literal_column(str(int(limit)))))


async def environments_by_id(tx: ReadTx, ids: Sequence[UUID], *, project_id: int) -> Sequence[Row]:
    return await tx.fetch(ENVIRONMENTS_BY_ID, {"ids": list(ids), "project_id": project_id})


async def has_submission_key(tx: ReadTx, keys: Sequence[str], *, project_id: int) -> bool:
    return bool((await tx.fetch(HAS_SUBMISSION_KEY, {"keys": list(keys), "project_id": project_id}))[0].known)


async def list_environments(
    tx: ReadTx,
    *,
    project_id: int,
    task: str | None,
    trajectory: str | None,
    state: str | None,
    before: tuple[datetime, UUID] | None,
    limit: int,
) -> Sequence[Row]:
    """Newest first."""
    at, id = before or (None, None)
    named = {"project_id": project_id, "task": task, "trajectory": trajectory, "state": state}
    return await tx.fetch(LIST_ENVIRONMENTS, {**named, "at": at, "id": id, "limit": limit})


async def check_consistency(tx: ReadTx) -> Row:
    """Every row is looked at once; it takes seconds where there are millions."""
    return (await tx.fetch(CONSISTENCY_CHECK))[0]


RUNNING_ACTIONS = text("""
    select a.id, a.trajectory, q.task, n.name as node
      from actions as a
      join queues as q on q.id = a.queue_id
      left join nodes as n on n.id = a.node_id
     where a.id = any(cast(:ids as uuid[]))
       and a.project_id = :project_id
       and a.state = 'running'
""")


async def running_actions(tx: ReadTx, ids: Sequence[UUID], *, project_id: int) -> dict[UUID, Row]:
    """Of those that run and are this project's."""
    return {row.id: row for row in await tx.fetch(RUNNING_ACTIONS, {"ids": list(ids), "project_id": project_id})}
