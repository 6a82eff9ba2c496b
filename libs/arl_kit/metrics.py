"""What a process tells Prometheus: names begin with `tangram_`, units are base units, no label is an id."""

from collections.abc import Awaitable, Callable, Sequence

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

__all__ = ["CONTENT_TYPE", "SIZES", "Metrics"]

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_PREFIX = "tangram"
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})

OnScrape = Callable[[], Awaitable[None]]


class Metrics:
    """One registry per process. Gauges that cost something to know are set by an `on_scrape`."""

    def __init__(self) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._on_scrape: list[OnScrape] = []
        route = ("method", "route", "status")
        self._requests = self.counter("http_requests", "Requests answered, by route template", *route)
        self._answers: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        """Where answers of each kind are counted; to look their labels up takes longer than to count them."""
        self._durations = self.histogram("http_request_duration_seconds", "Until the last byte", SECONDS, *route[:2])

    def describe_process(self, *, service: str, version: str) -> None:
        """`tangram_build_info`, and memory, CPU time and open files of this process."""
        self.gauge("build_info", "1; the labels say what runs", "service", "version").labels(service, version).set(1)
        ProcessCollector(namespace=_PREFIX, registry=self.registry)

    def counter(self, name: str, says: str, *labels: str) -> Counter:
        return Counter(name, says, labels, namespace=_PREFIX, registry=self.registry)

    def gauge(self, name: str, says: str, *labels: str) -> Gauge:
        return Gauge(name, says, labels, namespace=_PREFIX, registry=self.registry)

    def gauge_of(self, name: str, says: str, value: Callable[[], float]) -> None:
        """Asked at each scrape."""
        self.gauge(name, says).set_function(value)

    def histogram(self, name: str, says: str, buckets: Sequence[float] = SECONDS, *labels: str) -> Histogram:
        return Histogram(name, says, labels, namespace=_PREFIX, buckets=buckets, registry=self.registry)

    def follow(self, counter: Counter, total: Callable[[], int]) -> None:
        """Keep a counter at what another place counts anyway."""
        counted = 0

        async def catch_up() -> None:
            nonlocal counted
            now = total()
            counter.inc(now - counted)
            counted = now

        self.on_scrape(catch_up)

    def on_scrape(self, refresh: OnScrape) -> None:
        """Called before each answer."""
        self._on_scrape.append(refresh)

    def answered(self, *, method: str, route: str, status: int, seconds: float) -> None:
        """One HTTP request; `route` is its template, never its path."""
        key = (method if method in _METHODS else "other", route, status)
        if key not in self._answers:
            self._answers[key] = (self._requests.labels(*map(str, key)), self._durations.labels(*key[:2]))
        requests, durations = self._answers[key]
        requests.inc()
        durations.observe(seconds)

    async def exposition(self) -> bytes:
        """The text that Prometheus scrapes."""
        for refresh in self._on_scrape:
            await refresh()
        return generate_latest(self.registry)
