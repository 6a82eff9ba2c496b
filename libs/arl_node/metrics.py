from collections.abc import Callable, Mapping, Sequence

from arl_core.domain.model import Fence
from arl_core.domain.states import ActionState
from arl_kit.action_metrics import ActionMetrics, CoreTime, TaskLabels
from arl_kit.metrics import SIZE_BUCKETS, Metrics
from arl_node.result_spool import ResultSpool
from arl_store.queue_repository import names_of_own_tasks
from arl_store.tx import PostgresStore, Row

__all__ = ["ManagerMetrics", "SpoolMetrics"]


class ManagerMetrics:
    """The metrics of the grants of a node."""

    def __init__(self, metrics: Metrics, store: PostgresStore) -> None:
        self._actions = ActionMetrics(metrics, TaskLabels(store, names_of_own_tasks))
        self._requeued = metrics.counter(
            "attempts_requeued", "Attempts that ended in an infra_error and were re-queued"
        )
        self.refused = metrics.counter(
            "grants_refused", "Grants refused because they did not fit or their environment was busy"
        )
        self.start_batch_size = metrics.histogram("start_batch_actions", "Actions per start statement", SIZE_BUCKETS)
        self._settle_batch_size = metrics.histogram(
            "settle_batch_actions", "Actions per settle statement", SIZE_BUCKETS
        )
        self.running = metrics.gauge("attempts_running", "Attempts that occupy resources of this node")
        self.poll_failures = metrics.counter("poll_failures", "Failed polls")

    def core_times(
        self, rows: Sequence[Row], cpu_us: Mapping[Fence, int], allocated_core_s: Callable[[Fence], float]
    ) -> list[CoreTime]:
        """Return the core-seconds of ended attempts, which must still be allocated.

        The CPU time of attempts without allocated cores is not counted.
        """
        return [
            CoreTime(queue_id=row.queue_id, kind=row.kind, allocated_s=allocated_s, used_s=cpu_us[fence] / 1e6)
            for row in rows
            if (allocated_s := allocated_core_s(fence := Fence(row.id, row.grant_no))) > 0
        ]

    def record_settled(self, rows: Sequence[Row], core_times: Sequence[CoreTime], *, batch_size: int) -> None:
        """Count the rows that a batch of reports changed.

        An attempt without a row had lost its fence; the service that took the fence counts it. This never waits.
        """
        self._settle_batch_size.observe(batch_size)
        self._requeued.inc(sum(row.state == ActionState.QUEUED for row in rows))
        self._actions.record(rows, core_times)


class SpoolMetrics:
    """The metrics of the results on disk."""

    def __init__(self, metrics: Metrics, spool: ResultSpool) -> None:
        self.spooled = metrics.counter(
            "results_spooled", "Results written to the spool because Postgres was unavailable"
        )
        self.replayed = metrics.counter("results_replayed", "Spooled results that Postgres accepted")
        self.refused = metrics.counter(
            "results_refused", "Spooled results dropped because their attempt no longer had its fence"
        )
        self.unspooled = metrics.counter(
            "results_unspooled", "Results that stayed in memory only because the spool could not take them"
        )
        self.damaged = metrics.counter("results_damaged", "Spooled results that could not be read")
        metrics.gauge_function("spool_results", "Results in the spool", lambda: len(spool))
        metrics.gauge_function("spool_bytes", "Size of the results in the spool", lambda: spool.used_bytes)
