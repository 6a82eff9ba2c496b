"""Statements of admission."""

import json
from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from uuid import UUID

from sqlalchemy import text

from arl_admission.checks.environment_checks import SIZE_FIELDS, ExistingEnvironment
from arl_admission.checks.fleet import enforced_capabilities
from arl_admission.normalise import NewAction
from arl_store.guards import DESIRED_STATE_LOCK
from arl_store.tx import ReadTx, Row, WriteTx
from arl_wire.internal.admission import InternalChangeProjectRequest, InternalChangeQueueRequest

__all__ = [
    "LOCK_DESIRED_STATE",
    "change_project",
    "change_queue",
    "count_queued",
    "drop_empty_partitions",
    "ensure_queue",
    "environments_by_name",
    "expire_snapshots",
    "expired_actions",
    "forget_environments",
    "forget_keys",
    "insert_actions",
    "known_keys",
    "remove_actions",
    "request_cancel",
    "request_snapshot_delete",
    "table_sizes",
]

ENSURE_QUEUE = text("""
    with made as (
        insert into queues (project_id, task)
        values (:project_id, :task)
            on conflict (project_id, task) do nothing
     returning id
    )
    select id from made
     union all
    select id from queues where project_id = :project_id and task = :task
     limit 1
""")

SELECT_KEYS = text("""
    select s.project_id, s.key, encode(s.body_hash, 'hex') as body_hash, s.ids[1] as id
      from submissions as s
      join unnest(cast(:project_ids as int[]), cast(:keys as text[])) as asked (project_id, key)
     using (project_id, key)
     where s.expires_at >= now()
""")

LOCK_DESIRED_STATE = text(f"select pg_advisory_xact_lock({DESIRED_STATE_LOCK})")

CHANGE_QUEUE = text("""
    update queues
       set max_queued = case when :limits then cast(:max_queued as int) else max_queued end,
           paused_at = case when cast(:paused as boolean) is null then paused_at
                            when :paused then coalesce(paused_at, now()) end,
           weight = coalesce(cast(:weight as float8), weight),
           quota = case when :sets_quota then cast(cast(:quota as text) as jsonb) else quota end
     where project_id = :project_id
       and task = :task
 returning id
""")

CHANGE_PROJECT = text("update projects set weight = :weight where name = :name")

COUNT_QUEUED = text("""
    select q.id, q.max_queued, coalesce(waiting.queued, 0) as queued
      from queues as q
      left join (select queue_id, count(*) as queued
                   from actions
                  where state = 'queued'
                  group by queue_id) as waiting on waiting.queue_id = q.id
""")

_COLUMNS = {
    "id": "uuid",
    "project_id": "int",
    "queue_id": "int",
    "kind": "text",
    "trajectory": "text",
    "retries": "int",
    "idempotent": "boolean",
    "deadline_s": "float8",
    "class_key": "bigint",
    "shape": "text",
    "demand": "text",
    "elastic": "text",
    "cpu_sharing": "text",
    "environment": "text",
    "priority": "int",
    "timeout_s": "float8",
    "wall_timeout_s": "float8",
    "step": "int",
    "hints": "text",
    "labels": "text",
    "traceparent": "text",
    "tracestate": "text",
    "payload": "text",
    "key": "text",
    "body_hash": "text",
    "gang": "text",
    "service": "text",
}
_UNNEST = ", ".join(f"cast(:{name} as {kind}[])" for name, kind in _COLUMNS.items())

# Keys and actions in one statement, hence in one commit. A bound key prevents the insert of its action; an expired key
# is free again. The removal of a service waits for the service's row, or this statement does not find the row.
INSERT_ACTIONS = text(f"""
    with held as (
        select name from services
         where kind is not null and name = any(cast(:service as text[]))
         order by name
           for key share
    ), asked as (
        select *
          from unnest({_UNNEST}) as n ({", ".join(_COLUMNS)})
         where n.service is null
            or n.service in (select name from held)
    ), claimed as (
        insert into submissions (project_id, key, body_hash, ids, expires_at)
        select project_id, key, decode(body_hash, 'hex'), array[id], now() + make_interval(secs => :retention_s)
          from asked
         where key is not null
         order by project_id, key
            on conflict (project_id, key) do update
           set body_hash = excluded.body_hash, ids = excluded.ids, expires_at = excluded.expires_at
         where submissions.expires_at < now()
     returning project_id, key
    ), new as (
        select asked.*
          from asked
          left join claimed using (project_id, key)
         where asked.key is null or claimed.key is not null
    ), specs as (
        insert into action_specs (id, class_key, shape, demand, elastic, cpu_sharing, environment, priority, timeout_s,
                                  wall_timeout_s, step, hints, labels, traceparent, tracestate, payload, gang)
        select id, class_key, shape, demand::jsonb, elastic::jsonb, cpu_sharing::jsonb, environment::jsonb, priority,
               timeout_s, wall_timeout_s, step, hints::jsonb, labels::jsonb, traceparent, tracestate, payload::json,
               gang::jsonb
          from new
    )
    insert into actions (id, project_id, queue_id, kind, trajectory, retries, idempotent, deadline_at)
    select id, project_id, queue_id, kind, trajectory, retries, idempotent, now() + make_interval(secs => deadline_s)
      from new
 returning id, extract(epoch from created_at)::float8 as submitted, extract(epoch from deadline_at)::float8 as deadline
""")  # noqa: S608 - the column list is a constant of this module

REQUEST_CANCEL = text("""
    update actions
       set cancel_requested_at = now()
     where id in (select id
                    from actions
                   where project_id = :project_id
                     and id = any(cast(:ids as uuid[]))
                     and state <> 'settled'
                     and cancel_requested_at is null
                   order by id
                     for no key update)
""")

SELECT_ENVIRONMENTS = text("""
    select e.queue_id, e.trajectory, e.template, e.memory_mib, e.disk_mib, e.pids, n.capacity::text, n.enforced::text
      from environments as e
      join nodes as n on n.id = e.node_id
      join unnest(cast(:queue_ids as int[]), cast(:trajectories as text[])) as asked (queue_id, trajectory)
     using (queue_id, trajectory)
     where e.ended_at is null
       and e.lost_at is null
       and e.delete_requested_at is null
""")

FORGET_KEYS = text("""
    delete from submissions
     where (project_id, key) in (select project_id, key
                                   from submissions
                                  where expires_at < coalesce(cast(:now as timestamptz), now())
                                  order by expires_at
                                  limit :limit
                                    for update skip locked)
""")

# Ids are in order of admission: an action admitted within the retention cannot have settled before it.
SELECT_EXPIRED_ACTIONS = text("""
    select id
      from actions
     where id > cast(:after as uuid)
       and id < first_uuid_at(coalesce(cast(:now as timestamptz), now()) - make_interval(secs => :retention_s))
       and state = 'settled'
       and settled_at < coalesce(cast(:now as timestamptz), now()) - make_interval(secs => :retention_s)
     order by id
     limit :limit
""")

REMOVE_RESULTS = text("delete from action_results where id = any(cast(:ids as uuid[]))")
REMOVE_SPECS = text("delete from action_specs where id = any(cast(:ids as uuid[]))")
REMOVE_ATTEMPTS = text("delete from attempts where id = any(cast(:ids as uuid[]))")
REMOVE_ACTIONS = text("delete from actions where id = any(cast(:ids as uuid[])) and state = 'settled'")

REQUEST_SNAPSHOT_DELETE = text("""
    update snapshots set delete_requested_at = now()
     where id = :id and project_id = :project_id and delete_requested_at is null
""")

# The nodes remove the files, then the rows.
EXPIRE_SNAPSHOTS = text("""
    update snapshots set delete_requested_at = now()
     where id in (select id
                    from snapshots
                   where delete_requested_at is null
                     and created_at < coalesce(cast(:now as timestamptz), now()) - make_interval(secs => :retention_s)
                   order by id
                   limit :limit
                     for update skip locked)
""")

FORGET_ENVIRONMENTS = text("""
    delete from environments
     where id in (select id
                    from environments
                   where delete_requested_at is not null
                     and (ended_at is not null or lost_at is not null)
                     and greatest(delete_requested_at, ended_at, lost_at)
                         < coalesce(cast(:now as timestamptz), now()) - make_interval(secs => :retention_s)
                   order by delete_requested_at
                   limit :limit
                     for update skip locked)
""")

DROP_EMPTY_PARTITIONS = text("""
    select drop_empty_partitions(coalesce(cast(:now as timestamptz), now()) - make_interval(secs => :retention_s))
""")

SELECT_TABLE_SIZES = text("""
    select name, sum(pg_total_relation_size(relid))::bigint as bytes
      from unnest(array['actions', 'action_specs', 'action_results']) as name,
           pg_partition_tree(name::regclass)
     where isleaf
     group by name
     union all
    select name, pg_total_relation_size(name::regclass)
      from unnest(array['submissions', 'environments']) as name
""")


async def ensure_queue(tx: WriteTx, *, project_id: int, task: str) -> int:
    """Return the id of the task's queue. The first action creates it."""
    while True:
        row = await tx.first(ENSURE_QUEUE, {"project_id": project_id, "task": task})
        # Another insert of the same name may commit after this statement's snapshot. The next statement sees it.
        if row is not None:
            return int(row.id)


async def known_keys(tx: ReadTx, keys: Sequence[tuple[int, str]]) -> dict[tuple[int, str], tuple[str, UUID]]:
    """Return the body hash and the action id that each key is bound to."""
    rows = await tx.fetch(SELECT_KEYS, {"project_ids": [key[0] for key in keys], "keys": [key[1] for key in keys]})
    return {(row.project_id, row.key): (row.body_hash, row.id) for row in rows}


async def count_queued(tx: ReadTx) -> Sequence[Row]:
    """Return the specific limit, if any, and the number of queued actions of each queue."""
    return await tx.fetch(COUNT_QUEUED)


async def change_queue(tx: WriteTx, request: InternalChangeQueueRequest) -> int | None:
    """Change a queue. Return its id, or None if the task has none yet. No grant that missed a pause commits later."""
    await tx.first(LOCK_DESIRED_STATE)
    quota = request.quota.model_dump_json(exclude_none=True) if request.quota is not None else None
    row = await tx.first(CHANGE_QUEUE, {**request.model_dump(exclude={"create"}), "quota": quota})
    return int(row.id) if row is not None else None


async def change_project(tx: WriteTx, request: InternalChangeProjectRequest) -> int:
    """Change a project. Return 1, or 0 if it does not exist."""
    return await tx.execute(CHANGE_PROJECT, request.model_dump())


async def insert_actions(tx: WriteTx, actions: Sequence[NewAction], *, retention_s: int) -> dict[UUID, Row]:
    """Insert actions with distinct keys. Return the inserted rows; an action whose key was bound is not among them."""
    columns = {field.name: [getattr(action, field.name) for action in actions] for field in fields(NewAction)}
    rows = await tx.fetch(INSERT_ACTIONS, {**columns, "retention_s": retention_s})
    return {row.id: row for row in rows}


async def request_cancel(tx: WriteTx, *, project_id: int, ids: Sequence[UUID]) -> int:
    """Request the cancellation of actions of the project. Return the number of changed rows."""
    return await tx.execute(REQUEST_CANCEL, {"project_id": project_id, "ids": sorted(ids)})


async def environments_by_name(
    tx: ReadTx, names: Sequence[tuple[int, str]]
) -> dict[tuple[int, str], ExistingEnvironment]:
    """Return the environments as their first use created them, by queue and trajectory."""
    rows = await tx.fetch(
        SELECT_ENVIRONMENTS, {"queue_ids": [name[0] for name in names], "trajectories": [name[1] for name in names]}
    )
    return {
        (row.queue_id, row.trajectory): ExistingEnvironment(
            row.template,
            {name: getattr(row, name) for name in SIZE_FIELDS},
            json.loads(row.capacity),
            enforced_capabilities(row),
        )
        for row in rows
    }


async def table_sizes(tx: ReadTx) -> Sequence[Row]:
    """Return the size in bytes of each table that grows with the actions."""
    return await tx.fetch(SELECT_TABLE_SIZES)


async def forget_keys(tx: WriteTx, *, limit: int, now: datetime | None) -> int:
    """Delete expired keys."""
    return await tx.execute(FORGET_KEYS, {"limit": limit, "now": now})


async def expired_actions(
    tx: ReadTx, *, after: UUID, retention_s: float, limit: int, now: datetime | None
) -> Sequence[UUID]:
    """Return the next expired actions in order of id. A settled row never changes again."""
    rows = await tx.fetch(
        SELECT_EXPIRED_ACTIONS, {"after": after, "retention_s": retention_s, "limit": limit, "now": now}
    )
    return [row.id for row in rows]


async def remove_actions(tx: WriteTx, ids: Sequence[UUID]) -> None:
    """Delete actions with their specs, results and earlier attempts."""
    for statement in (REMOVE_RESULTS, REMOVE_SPECS, REMOVE_ATTEMPTS, REMOVE_ACTIONS):
        await tx.execute(statement, {"ids": list(ids)})


async def request_snapshot_delete(tx: WriteTx, *, project_id: int, id: UUID) -> int:
    """Request the deletion of a snapshot. Return 0 if the project has no such snapshot."""
    return await tx.execute(REQUEST_SNAPSHOT_DELETE, {"project_id": project_id, "id": id})


async def expire_snapshots(tx: WriteTx, *, retention_s: float, limit: int, now: datetime | None) -> int:
    """Request the deletion of old snapshots. Return the number of changed rows."""
    return await tx.execute(EXPIRE_SNAPSHOTS, {"retention_s": retention_s, "limit": limit, "now": now})


async def forget_environments(tx: WriteTx, *, retention_s: float, limit: int, now: datetime | None) -> int:
    """Delete environments that ended and that the client deleted; their names are already free."""
    return await tx.execute(FORGET_ENVIRONMENTS, {"retention_s": retention_s, "limit": limit, "now": now})


async def drop_empty_partitions(tx: WriteTx, *, retention_s: float, now: datetime | None) -> None:
    """Drop old partitions without rows."""
    await tx.first(DROP_EMPTY_PARTITIONS, {"retention_s": retention_s, "now": now})
