"""Multiplication of queued rows for benchmarks: `python -m arl_bench.micro.backlog STATE_DIR TIMES`.

The rows that are queued at the start are inserted `TIMES` times under new ids, in one transaction each. The rows have
the same columns as if admission had inserted as many batches without gangs, and admission's rights suffice. It works
with the embedded Postgres of a state directory only, because `uuidv7()` requires PostgreSQL 18.
"""

import asyncio
import sys
from pathlib import Path

from arl_bench.micro.backlog_queries import insert_copies, queued_ids
from arl_local.database import ensure_embedded_database
from arl_local.postgres.embedded_postgres import EmbeddedPostgres
from arl_local.state_dir import StateDir
from arl_store.logins import role_url
from arl_store.tx import open_store

__all__ = ["multiply_backlog"]


async def multiply_backlog(directory: Path, times: int) -> int:
    """Insert the copies and return the number of inserted rows."""
    owner_url = await ensure_embedded_database(EmbeddedPostgres(directory))
    url = role_url(owner_url, "admission", StateDir(directory).secret("passwords", "admission"))
    store = open_store(url, name="multiplied", pool_size=1)
    inserted = 0
    try:
        async with store.read() as tx:
            ids = await queued_ids(tx)
        for number in range(times):
            async with store.write() as tx:
                inserted += await insert_copies(tx, ids, number=number)
    finally:
        await store.close()
    return inserted


if __name__ == "__main__":
    print(asyncio.run(multiply_backlog(Path(sys.argv[1]), int(sys.argv[2]))))
