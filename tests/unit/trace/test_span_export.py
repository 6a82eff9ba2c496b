"""Export of settled actions: retries, bounds and counters, by exporters that fail, hang or work."""

import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from prometheus_client import generate_latest

from arl_kit.metrics import Metrics
from arl_kit.telemetry.otel import TracePipeline
from arl_store.tx import PostgresStore
from arl_trace import export
from arl_trace.export import Exporter
from support.conditions import eventually

BEGIN = datetime(2026, 11, 22, tzinfo=UTC)


def a_row(id: UUID) -> dict[str, Any]:
    times = {name: BEGIN + timedelta(seconds=n) for n, name in enumerate(("created_at", "granted_at", "started_at"))}
    about = {"id": id, "task": "t", "kind": "exec", "trajectory": None, "state": "settled", "outcome": "ok"}
    more = dict.fromkeys(("reason", "node", "traceparent", "tracestate", "timeline", "earlier"))
    about |= {"step": None, "is_critical": False, "labels": None, "demand": '{"cpu_milli": 100}', "exit_code": 0}
    return about | times | more | {"grant_no": 1, "settled_at": BEGIN + timedelta(seconds=9), "run_us": 1000}


class RowStore:
    """A store in which every action has settled."""

    @asynccontextmanager
    async def read(self) -> AsyncIterator["RowStore"]:
        yield self

    async def fetch(self, statement: Any, parameters: dict[str, Any]) -> Sequence[dict[str, Any]]:
        return [a_row(id) for id in parameters["ids"]]

    async def close(self) -> None:
        pass


class FailingExporter(SpanExporter):
    """An exporter that fails `failures` times and then succeeds."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.calls = 0
        self.names: list[str] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.calls += 1
        if self.calls <= self.failures:
            return SpanExportResult.FAILURE
        self.names += [span.name for span in spans]
        return SpanExportResult.SUCCESS


class HangingExporter(SpanExporter):
    """An exporter whose collector never answers."""

    def __init__(self) -> None:
        self.entered, self.released = threading.Event(), threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.entered.set()
        self.released.wait(30)
        return SpanExportResult.FAILURE


def an_exporter(exporter: SpanExporter, metrics: Metrics, **options: Any) -> Exporter:
    pipeline = TracePipeline(
        exporters=(exporter,), sampler=ALWAYS_ON, resource=Resource({}), limits=SpanLimits(), **options
    )
    return Exporter(cast(PostgresStore, RowStore()), pipeline, version="1", slow_s=10, metrics=metrics)


def counted(metrics: Metrics, name: str) -> float:
    lines = [line for line in generate_latest(metrics.registry).decode().splitlines() if line.startswith(name)]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


async def test_failed_export_is_retried_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    metrics, failing = Metrics(), FailingExporter(2)
    exporter = an_exporter(failing, metrics, schedule_delay_s=0.01)
    await exporter.start()
    exporter.over([UUID(int=1)])
    await eventually(lambda: bool(failing.names))
    await exporter.stop()
    assert failing.names == ["create action", "queue wait", "grant", "process action", "settle"]
    assert counted(metrics, "tangram_span_export_failures_total") == 2
    assert counted(metrics, "tangram_spans_exported_total") == 5
    assert [record.message.partition(";")[0] for record in caplog.records] == [
        *("export of spans failed", "export of spans works again")
    ]


async def test_spans_refused_for_too_long_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "RETRY_S", 0.0)
    metrics, failing = Metrics(), FailingExporter(100)
    exporter = an_exporter(failing, metrics, schedule_delay_s=0.01)
    await exporter.start()
    exporter.over([UUID(int=1)])
    await eventually(lambda: counted(metrics, 'tangram_spans_lost_total{why="refused"}') == 1)
    await exporter.stop()
    assert failing.calls == 2


async def test_full_queue_drops_the_oldest_actions() -> None:
    metrics = Metrics()
    exporter = an_exporter(FailingExporter(0), metrics, queue_actions=3)
    exporter.over(UUID(int=n) for n in range(1, 6))
    assert list(exporter._ids) == [UUID(int=n) for n in (3, 4, 5)]
    assert counted(metrics, 'tangram_spans_lost_total{why="full"}') == 2


async def test_stop_with_hanging_collector_ends_within_its_time_limit() -> None:
    metrics, hanging = Metrics(), HangingExporter()
    exporter = an_exporter(hanging, metrics, schedule_delay_s=0.01)
    await exporter.start()
    exporter.over([UUID(int=1)])
    await eventually(hanging.entered.is_set)
    began = time.monotonic()
    await exporter.stop()
    assert time.monotonic() - began < export.STOP_S + export.SHUT_DOWN_S + 1
    assert counted(metrics, 'tangram_spans_lost_total{why="stopped"}') == 1
    hanging.released.set()


async def test_stop_flushes_waiting_actions() -> None:
    metrics, working = Metrics(), FailingExporter(0)
    exporter = an_exporter(working, metrics, schedule_delay_s=60.0)
    await exporter.start()
    exporter.over([UUID(int=1)])
    await exporter.stop()
    assert len(working.names) == 5
