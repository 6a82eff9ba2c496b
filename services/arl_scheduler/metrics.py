from arl_kit.metrics import Metrics

__all__ = ["SchedulerMetrics"]


class SchedulerMetrics:
    """Metrics of the queues and rounds of the leader. A standby shows no queues."""

    def __init__(self, metrics: Metrics) -> None:
        task = ("project", "task")
        self.depth = metrics.gauge("queue_depth", "Queued actions by task", *task)
        self.oldest = metrics.gauge(
            "queue_oldest_age_seconds", "Age in seconds of the oldest queued action by task", *task
        )
        self.allocated = metrics.gauge("allocated_attempts", "Granted and running attempts in the leader's index")
        self.stragglers = metrics.gauge("stragglers", "Actions that run far longer than others of their class")
        self.rounds = metrics.histogram(
            "round_duration_seconds", "Seconds of scheduling rounds that had something to decide"
        )
        self.round_failures = metrics.counter(
            "round_failures", "Failed rounds; after each, the index is rebuilt from rows"
        )
        self.polls = metrics.histogram(
            "scheduler_poll_duration_seconds", "Seconds to read the rows and to update the index"
        )
        self.critical = metrics.gauge(
            "critical_trajectories", "Trajectories that are expected to end their steps last, whose actions go first"
        )
        self.critical_grants = metrics.counter("critical_grants", "Grants to actions of critical trajectories")
        self.grants = metrics.counter("grants", "Grants that Postgres accepted")
        self.classes = metrics.gauge("classes_known", "Classes of actions with a learnt run time")
        self.resizes = metrics.counter(
            "resizes", "Resizes of running actions that were written, by direction", "direction"
        )
        self.reclaimed = metrics.counter("attempts_reclaimed", "Attempts reclaimed from lost nodes")
        self.leader = metrics.gauge("leader", "1 while this process leads its cell, otherwise 0")
