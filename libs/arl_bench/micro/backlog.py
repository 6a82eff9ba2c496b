"""Very many queued rows out of a few, for benchmarks: `python -m arl_bench.micro.backlog STATE_DIR TIMES`.

What waits at the beginning is inserted again so many times, under new ids and in transactions of its own size: with
the rights of admission and with the columns that it writes, the rows that as many batches without gangs would have
made. Of the embedded Postgres of a state directory, as `uuidv7()` came with PostgreSQL 18.
"""

import asyncio
import sys
from pathlib import Path

from sqlalchemy import text

from arl_local.database import ensure_embedded_database
from arl_local.postgres.embedded_postgres import EmbeddedPostgres
from arl_local.state_dir import StateDir
from arl_store.migrate import role_url
from arl_store.tx import open_store

__all__ = ["multiply_backlog"]

SELECT_QUEUED = text("select id from actions where state = 'queued' order by id")

# A trajectory that is named has a name of its own each time, or one environment would have all of them to itself.
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


async def multiply_backlog(directory: Path, times: int) -> int:
    """How many rows were inserted."""
    owner_url = await ensure_embedded_database(EmbeddedPostgres(directory))
    url = role_url(owner_url, "admission", StateDir(directory).secret("passwords", "admission"))
    store = open_store(url, name="multiplied", pool_size=1)
    inserted = 0
    try:
        async with store.read() as tx:
            ids = [row.id for row in await tx.fetch(SELECT_QUEUED)]
        for number in range(times):
            async with store.write() as tx:
                inserted += await tx.execute(INSERT_COPIES, {"ids": ids, "number": str(number)})
    finally:
        await store.close()
    return inserted


if __name__ == "__main__":
    print(asyncio.run(multiply_backlog(Path(sys.argv[1]), int(sys.argv[2]))))
