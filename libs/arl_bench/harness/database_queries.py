"""Work of the embedded Postgres of a benchmark's system: WAL, transactions and rows, from Postgres' own counters."""

from dataclasses import asdict, dataclass

from sqlalchemy import text

from arl_bench.harness.bench_system import BenchSystem
from arl_local.database import ensure_embedded_database
from arl_local.postgres.embedded_postgres import EmbeddedPostgres
from arl_store.tx import open_store

__all__ = ["DatabaseWork", "read_database_work"]

# The counters of an open session arrive up to a second late. The sum over all databases includes the server's own work.
SELECT_WORK = text("""
    select cast(pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0') as bigint) as wal_bytes,
           cast(sum(xact_commit) as bigint) as transactions,
           cast(sum(tup_inserted + tup_updated + tup_deleted) as bigint) as row_versions
      from pg_stat_database
""")


@dataclass(frozen=True, slots=True)
class DatabaseWork:
    """Counters of Postgres, or their difference."""

    wal_bytes: int
    transactions: int
    row_versions: int
    """Inserted, updated and deleted rows."""

    def since(self, before: "DatabaseWork") -> "DatabaseWork":
        """Return the work since an earlier reading."""
        return DatabaseWork(
            self.wal_bytes - before.wal_bytes,
            self.transactions - before.transactions,
            self.row_versions - before.row_versions,
        )

    def per(self, count: float) -> dict[str, float]:
        """Return each counter divided by a number of actions or of seconds."""
        return {name: round(value / count, 2) for name, value in asdict(self).items()}


async def read_database_work(system: BenchSystem) -> DatabaseWork:
    """Read the counters as the owner of the database."""
    store = open_store(await ensure_embedded_database(EmbeddedPostgres(system.directory)), name="bench", pool_size=1)
    try:
        async with store.read() as tx:
            (row,) = await tx.fetch(SELECT_WORK)
            return DatabaseWork(row.wal_bytes, row.transactions, row.row_versions)
    finally:
        await store.close()
