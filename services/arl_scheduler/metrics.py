from arl_kit.metrics import Metrics

__all__ = ["SchedulerMetrics"]


class SchedulerMetrics:
    """Metrics of the queues and rounds of the leader. A standby shows no queues."""

    def __init__(self, metrics: Metrics) -> None:
        task = ("project", "task")
        self.depth = metrics.gauge("queue_depth", "Queued actions of a task", *task)
        self.oldest = metrics.gauge("queue_oldest_age_seconds", "Since the oldest queued action was accepted", *task)
        self.allocated = metrics.gauge("allocated_attempts", "Granted and running, as the leader's index has them")
        self.stragglers = metrics.gauge("stragglers", "Actions that run far longer than others of their class")
        self.rounds = metrics.histogram("round_duration_seconds", "Rounds that had something to decide on")
        self.round_failures = metrics.counter("round_failures", "After each the index is rebuilt from rows")
        self.polls = metrics.histogram(
            "scheduler_poll_duration_seconds", "Reading the rows, and making the index agree"
        )
        self.grants = metrics.counter("grants", "Grants that Postgres took")
        self.classes = metrics.gauge("classes_known", "Classes of actions of which it is known how long they take")
        self.resizes = metrics.counter("resizes", "Running actions whose rows got other amounts", "direction")
        self.reclaimed = metrics.counter("attempts_reclaimed", "Attempts taken back from nodes that were lost")
        self.settled = metrics.counter("actions_settled", "Settled by this service, by outcome", "outcome")
        self.leader = metrics.gauge("leader", "1 while this process leads its cell")
