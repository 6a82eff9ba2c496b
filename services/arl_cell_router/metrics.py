from prometheus_client import Counter

from arl_kit.app import VERSION
from arl_kit.metrics import Metrics

__all__ = ["RouterMetrics"]


class RouterMetrics:
    """The metrics of the router."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.metrics.describe_process(service="cell-router", version=VERSION)
        self._requests: Counter = self.metrics.counter(
            "cell_requests",
            "Requests to each cell by outcome: answered, unavailable (502 or 503), failed (no response), busy (no"
            " free connection), refused (the cell was known to be down)",
            "cell",
            "outcome",
        )
        self._up = self.metrics.gauge("cell_up", "1 while the health checks of the cell succeed, otherwise 0", "cell")

    def count_request(self, cell: int, outcome: str) -> None:
        """Count one request to a cell."""
        self._requests.labels(str(cell), outcome).inc()

    def set_up(self, cell: int, is_up: bool) -> None:
        """Set the state of a cell."""
        self._up.labels(str(cell)).set(is_up)
