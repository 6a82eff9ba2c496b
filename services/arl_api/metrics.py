from collections.abc import Mapping

from arl_api.endpoint_queue import EndpointQueue
from arl_kit.metrics import Metrics

__all__ = ["ApiMetrics"]


class ApiMetrics:
    """The metrics of requests to endpoints and of their concurrency windows."""

    def __init__(self, metrics: Metrics) -> None:
        self._requests = metrics.counter("api_requests", "Requests sent to endpoints, by result", "endpoint", "how")
        self._seconds = metrics.histogram("api_request_seconds", "Seconds until the response of a request was read")
        self._window = metrics.gauge(
            "api_concurrency_window", "Maximum number of concurrent calls that the endpoint accepts now", "endpoint"
        )
        self._in_flight = metrics.gauge("api_in_flight", "Requests in flight", "endpoint")

    def observe(self, endpoint: str, result: str, *, seconds: float) -> None:
        """Record a request and its duration."""
        self._requests.labels(endpoint, result).inc()
        self._seconds.observe(seconds)

    def update(self, queues: Mapping[str, EndpointQueue]) -> None:
        """Set the gauges from the queues."""
        for name, lane in queues.items():
            self._window.labels(name).set(lane.window.size)
            self._in_flight.labels(name).set(lane.in_flight)
