"""What the gateway reads."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Row, select, text

from arl_store.tables import action_specs, actions, nodes, queues
from arl_store.tx import ReadTx

__all__ = [
    "actions_by_id",
    "key_by_hash",
    "list_actions",
    "list_nodes",
    "results_by_id",
    "settled_among",
    "states_by_id",
]

KEY_BY_HASH = text("""
    select id, project_id, scopes
      from api_keys
     where hash = :hash
       and revoked_at is null
       and (expires_at is null or expires_at > now())
""")

SETTLED_AMONG = text("select id from actions where id = any(cast(:ids as uuid[])) and state = 'settled'")

STATES_BY_ID = text("""
    select id, state = 'settled' as settled
      from actions
     where id = any(cast(:ids as uuid[]))
       and project_id = :project_id
""")

RESULTS_BY_ID = text("""
    select id, grant_no, exit_code, signal, stdout, stderr, stdout_bytes, stderr_bytes, files::text as files,
           missing_files, cpu_us, peak_memory_kib, left_behind, message, enforcement::text as enforcement
      from action_results
     where id = any(cast(:ids as uuid[]))
""")

LIST_NODES = text("""
    select nodes.name, nodes.kind, nodes.driver, nodes.epoch, nodes.capacity::text as capacity, nodes.registered_at,
           node_beats.last_beat, node_beats.last_beat > now() - make_interval(secs => :ttl_s) as alive,
           nodes.cordoned_at is not null as cordoned, nodes.enforced::text as enforced,
           (select count(*) from actions where node_id = nodes.id and state in ('granted', 'running')) as running,
           (select count(*) from environments
             where node_id = nodes.id and ended_at is null and lost_at is null) as environments
      from nodes
      join node_beats on node_beats.node_id = nodes.id
     order by nodes.name
""")

_ACTION = (
    select(actions, queues.c.task, action_specs.c.labels, nodes.c.name.label("node"))
    .join(queues, queues.c.id == actions.c.queue_id)
    .join(action_specs, action_specs.c.id == actions.c.id)
    .outerjoin(nodes, nodes.c.id == actions.c.node_id)
)


async def key_by_hash(tx: ReadTx, digest: bytes) -> Row[Any] | None:
    return await tx.first(KEY_BY_HASH, {"hash": digest})


async def actions_by_id(tx: ReadTx, ids: Sequence[UUID], *, project_id: int) -> Sequence[Row[Any]]:
    """Those of `ids` that belong to the project; the others are as good as unknown."""
    return await tx.fetch(_ACTION.where(actions.c.id.in_(ids), actions.c.project_id == project_id))


async def results_by_id(tx: ReadTx, ids: Sequence[UUID]) -> Sequence[Row[Any]]:
    return await tx.fetch(RESULTS_BY_ID, {"ids": list(ids)})


async def states_by_id(tx: ReadTx, ids: Sequence[UUID], *, project_id: int) -> Sequence[Row[Any]]:
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
) -> Sequence[Row[Any]]:
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
    return await tx.fetch(statement.order_by(actions.c.id.desc()).limit(limit))


async def list_nodes(tx: ReadTx, *, ttl_s: float) -> Sequence[Row[Any]]:
    return await tx.fetch(LIST_NODES, {"ttl_s": ttl_s})
