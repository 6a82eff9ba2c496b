"""The page `reference/metrics`: every Prometheus metric, from the registries of the services."""

import importlib
from collections.abc import Iterable, Iterator

from fastapi import FastAPI
from markdown_text import anchor, cell, code, table
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from prometheus_client import ProcessCollector
from reference_settings import TITLES, models

from arl_cell_router.metrics import RouterMetrics
from arl_kit.metrics import Metrics
from arl_kit.telemetry.otel import TracePipeline

__all__ = ["metrics_of", "render"]

INTRO = """\
# Metrics

Every service answers `GET /metrics` in the text format of Prometheus. `tangram status` shows the addresses. The
gateway needs an API key with the scope `admin:read`, the other services the metrics token.
[Metrics](../operate/metrics.md) explains which metrics to watch.

A counter has the suffix `_total`. A histogram has the suffixes `_bucket`, `_sum` and `_count`. No label holds an id.
"""
PROCESS_NOTE = """\
On Linux every service also has `tangram_process_cpu_seconds_total`, `tangram_process_resident_memory_bytes`,
`tangram_process_virtual_memory_bytes`, `tangram_process_start_time_seconds`, `tangram_process_open_fds` and
`tangram_process_max_fds`.
"""
MANAGERS = ("cpu", "gpu", "api")
SETTINGS = {
    "port": 1,
    "database_url": "postgresql://",
    "service_token": "-" * 16,
    "admission_url": "http://localhost",
    "scheduler_url": "http://localhost",
    "driver": "simulated",
}
"""Settings with which every service can be built. Nothing connects before the application starts."""

Metric = tuple[str, str, str, tuple[str, ...]]
"""Name, type, help and labels."""


def metrics_of(service: str) -> dict[str, Metric]:
    """Return the metrics of a service by name."""
    build = importlib.import_module(f"arl_{service}.app").build
    settings = models()[service].model_validate(SETTINGS)
    app = build(settings, _pipeline()) if service == "scheduler" else build(settings)
    return {metric[0]: metric for metric in sorted(_registered(_metrics(app)))}


def render() -> str:
    found = {service: metrics_of(service) for service in TITLES}
    shared = set.intersection(*(set(metrics) for metrics in found.values()))
    managers = set.intersection(*(set(found[service]) for service in MANAGERS)) - shared
    parts = [
        INTRO,
        f"## Every service {anchor('service')}\n",
        _table(found["gateway"][name] for name in sorted(shared)),
        PROCESS_NOTE,
        f"## Every node {anchor('node')}\n",
        "CPU nodes, GPU nodes and the API broker have these metrics.\n",
        _table(found["cpu"][name] for name in sorted(managers)),
    ]
    for service, metrics in found.items():
        shown = shared | managers if service in MANAGERS else shared
        own = (metric for name, metric in metrics.items() if name not in shown)
        parts += [f"## {TITLES[service]} {anchor(service)}\n", _table(own)]
    router = {metric[0]: metric for metric in sorted(_registered(RouterMetrics().metrics))}
    own = (metric for name, metric in router.items() if name not in shared)
    parts += [f"## Cell router {anchor('cell-router')}\n", _table(own)]
    return "\n".join(parts)


def _table(metrics: Iterable[Metric]) -> str:
    return table(
        ["Metric", "Type", "Labels", "Meaning"],
        ([code(name), kind, ", ".join(map(code, labels)), cell(text)] for name, kind, text, labels in metrics),
    )


def _metrics(app: FastAPI) -> Metrics:
    """Return the registry of an application, which its middleware counts requests in."""
    return next(found for each in app.user_middleware if isinstance(found := each.kwargs.get("metrics"), Metrics))


def _registered(metrics: Metrics) -> Iterator[Metric]:
    for collector in dict.fromkeys(metrics.registry._names_to_collectors.values()):
        if isinstance(collector, ProcessCollector):
            continue
        for family in collector.describe() if hasattr(collector, "describe") else ():
            suffix = "_total" if family.type == "counter" else ""
            labels = tuple(getattr(collector, "_labelnames", ()))
            yield f"{family.name}{suffix}", family.type, family.documentation, labels


def _pipeline() -> TracePipeline:
    """Return a pipeline without exporters: the scheduler has the metrics of traces only if it has a pipeline."""
    return TracePipeline(exporters=(), sampler=ALWAYS_ON, resource=Resource({}), limits=SpanLimits())
