"""Statements that copy queued actions, for benchmarks."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import text

from arl_store.tx import ReadTx, WriteTx

__all__ = ["insert_copies", "queued_ids"]

SELECT_QUEUED = text("select id from actions where state = 'queued' order by id")

# A copy of a named trajectory gets its own name. Otherwise one environment would have all copies.
INSERT_COPIES = text("""
    with new as materialized (
        select uuidv7() as id, old.id as like_id from unnest(cast(:ids as uuid[])) as old (id)
    ), specs as (
        insert into action_specs (id, class_key, shape, demand, elastic, environment, priority, timeout_s, step,
                                  labels, traceparent, tracestate, payload)
        select new.id, s.class_key, s.shape, s.demand, s.elastic, s.environment, s.priority, s.timeout_s, s.step,
               s.labels, s.traceparent, s.tracestate, s.payload
          from new
          join action_specs as s on s.id = new.like_id
    )
    insert into actions (id, project_id, queue_id, kind, trajectory, retries, idempotent)
    select new.id, a.project_id, a.queue_id, a.kind, a.trajectory || '-' || cast(:number as text), a.retries,
           a.idempotent
      from new
      join actions as a on a.id = new.like_id
""")


async def queued_ids(tx: ReadTx) -> list[UUID]:
    """Return the ids of all queued actions, in their order."""
    return [row.id for row in await tx.fetch(SELECT_QUEUED)]


async def insert_copies(tx: WriteTx, ids: Sequence[UUID], *, number: int) -> int:
    """Insert copies of these actions and return the number of rows. `number` is a part of their trajectories' names."""
    return await tx.execute(INSERT_COPIES, {"ids": list(ids), "number": str(number)})
