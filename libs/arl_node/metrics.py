from arl_kit.metrics import SIZE_BUCKETS, Metrics

__all__ = ["ManagerMetrics"]


class ManagerMetrics:
    """The metrics of the grants of a node."""

    def __init__(self, metrics: Metrics) -> None:
        self.settled = metrics.counter("actions_settled", "Actions settled by this service, by outcome", "outcome")
        self.requeued = metrics.counter("attempts_requeued", "Attempts that ended in an infra_error and were re-queued")
        self.refused = metrics.counter(
            "grants_refused", "Grants refused because they did not fit or their environment was busy"
        )
        self.start_batch_size = metrics.histogram("start_batch_actions", "Actions per start statement", SIZE_BUCKETS)
        self.settle_batch_size = metrics.histogram("settle_batch_actions", "Actions per settle statement", SIZE_BUCKETS)
        self.running = metrics.gauge("attempts_running", "Attempts that occupy resources of this node")
        self.poll_failures = metrics.counter("poll_failures", "Failed polls")
