from arl_kit.metrics import Metrics

__all__ = ["AdmissionMetrics"]


class AdmissionMetrics:
    """What was taken in and what was not."""

    def __init__(self, metrics: Metrics) -> None:
        self.admitted = metrics.counter("actions_admitted", "Actions made durable; a repeated request is none")
        self.refused = metrics.counter("actions_refused", "Actions refused, by the code of the problem", "code")
