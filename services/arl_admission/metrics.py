from arl_admission import queries
from arl_kit.metrics import Metrics
from arl_store.tx import PostgresStore

__all__ = ["AdmissionMetrics", "add_table_metrics"]


def add_table_metrics(metrics: Metrics, store: PostgresStore) -> None:
    """Add gauges of the sizes of tables that grow with the actions, with indexes. Retention keeps them bounded."""
    size = metrics.gauge("table_bytes", "Size on disk in bytes, by table, with indexes and all partitions", "table")

    async def measure() -> None:
        """Read the sizes."""
        async with store.read() as tx:
            rows = await queries.table_sizes(tx)
        for row in rows:
            size.labels(row.name).set(row.bytes)

    metrics.add_scrape_hook(measure)


class AdmissionMetrics:
    """The counters of admitted and refused actions."""

    def __init__(self, metrics: Metrics) -> None:
        self.admitted = metrics.counter(
            "actions_admitted", "Actions admitted; a repeated request with the same Idempotency-Key does not count"
        )
        self.refused = metrics.counter("actions_refused", "Actions refused, by error code", "code")
