from arl_kit.metrics import SIZE_BUCKETS, Metrics

__all__ = ["ManagerMetrics"]


class ManagerMetrics:
    """The metrics of the grants of a node."""

    def __init__(self, metrics: Metrics) -> None:
        self.settled = metrics.counter("actions_settled", "Settled by this service, by outcome", "outcome")
        self.requeued = metrics.counter("attempts_requeued", "Ended in an infra_error with retries left")
        self.refused = metrics.counter("grants_refused", "Grants that did not fit, or whose environment was busy")
        self.start_batch_size = metrics.histogram("start_batch_actions", "Actions in one start statement", SIZE_BUCKETS)
        self.settle_batch_size = metrics.histogram(
            "settle_batch_actions", "Actions in one settle statement", SIZE_BUCKETS
        )
        self.running = metrics.gauge("attempts_running", "Attempts that hold something of this node")
        self.poll_failures = metrics.counter("poll_failures", "Polls that failed")
