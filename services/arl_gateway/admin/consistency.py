"""The consistency check: violations of invariants in one snapshot of all rows."""

import json

from arl_gateway.admin.consistency_queries import check_consistency
from arl_store.tx import PostgresStore, Row
from arl_wire.admin.consistency import ConsistencyReport

__all__ = ["ConsistencyService", "consistency_from_row"]


class ConsistencyService:
    """The consistency check."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store

    async def check(self) -> ConsistencyReport:
        """Check the rows of all projects."""
        async with self._store.read() as tx:
            return consistency_from_row(await check_consistency(tx))


def consistency_from_row(row: Row) -> ConsistencyReport:
    """Return the report of a row of `check_consistency`."""
    parts = {name: json.loads(getattr(row, name)) for name in ("actions", "nodes", "allocations", "findings")}
    return ConsistencyReport(at=row.at, **parts)
