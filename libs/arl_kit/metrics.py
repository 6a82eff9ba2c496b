"""Prometheus metrics of a process: names begin with `tangram_`, units are base units, no label is an id."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

__all__ = ["CONTENT_TYPE", "SIZE_BUCKETS", "Metrics"]

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
SECONDS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_PREFIX = "tangram"
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})

ScrapeHook = Callable[[], Awaitable[None]]


class Metrics:
    """The registry of a process. Scrape hooks set gauges that are costly to compute."""

    def __init__(self) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._scrape_hooks: list[ScrapeHook] = []
        self._scrape_lock = asyncio.Lock()
        """One scrape at a time: a hook of another must not change gauges that the thread is reading."""
        route = ("method", "route", "status")
        self._requests = self.counter("http_requests", "HTTP requests by method, route template and status", *route)
        self._metrics_by_labels: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        """Counters and histograms by labels. Looking labels up takes longer than counting."""
        self._durations = self.histogram(
            "http_request_duration_seconds",
            "Seconds from the start of a request to the last byte of its response",
            SECONDS_BUCKETS,
            *route[:2],
        )

    def describe_process(self, *, service: str, version: str) -> None:
        """Add `tangram_build_info`, and memory, CPU time and open files of this process."""
        self.gauge("build_info", "Always 1; the labels have the service and its version", "service", "version").labels(
            service, version
        ).set(1)
        ProcessCollector(namespace=_PREFIX, registry=self.registry)

    def counter(self, name: str, documentation: str, *labels: str) -> Counter:
        """Return a new counter; `name` without the prefix and the suffix `_total`."""
        return Counter(name, documentation, labels, namespace=_PREFIX, registry=self.registry)

    def gauge(self, name: str, documentation: str, *labels: str) -> Gauge:
        """Return a new gauge; `name` without the prefix."""
        return Gauge(name, documentation, labels, namespace=_PREFIX, registry=self.registry)

    def gauge_function(self, name: str, documentation: str, value: Callable[[], float]) -> None:
        """Add a gauge that calls `value` at each scrape."""
        self.gauge(name, documentation).set_function(value)

    def histogram(
        self, name: str, documentation: str, buckets: Sequence[float] = SECONDS_BUCKETS, *labels: str
    ) -> Histogram:
        """Return a new histogram; `name` without the prefix, `buckets` as upper bounds in its unit."""
        return Histogram(name, documentation, labels, namespace=_PREFIX, buckets=buckets, registry=self.registry)

    def track_total(self, counter: Counter, total: Callable[[], int]) -> None:
        """Keep a counter equal to a total that is counted elsewhere."""
        counted = 0

        async def catch_up() -> None:
            """Add the difference to the counter."""
            nonlocal counted
            now = total()
            counter.inc(now - counted)
            counted = now

        self.add_scrape_hook(catch_up)

    def add_scrape_hook(self, refresh: ScrapeHook) -> None:
        """Call `refresh` before each scrape."""
        self._scrape_hooks.append(refresh)

    def observe_request(self, *, method: str, route: str, status: int, seconds: float) -> None:
        """Count one HTTP request; `route` is its template, never its path."""
        key = (method if method in _METHODS else "other", route, status)
        if key not in self._metrics_by_labels:
            self._metrics_by_labels[key] = (self._requests.labels(*map(str, key)), self._durations.labels(*key[:2]))
        requests, durations = self._metrics_by_labels[key]
        requests.inc()
        durations.observe(seconds)

    async def exposition(self) -> bytes:
        """Return the text that Prometheus scrapes."""
        async with self._scrape_lock:
            for refresh in self._scrape_hooks:
                await refresh()
            # Ten thousand series take 60 ms of CPU time, in which the event loop must serve requests.
            return await asyncio.to_thread(generate_latest, self.registry)
