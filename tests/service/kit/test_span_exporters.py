"""Test the SDK's exporters, configured by OTEL_* variables, against real HTTP and gRPC servers."""

import asyncio
import json
import logging
import os
import shutil
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import SpanContext, TraceFlags

from arl_kit.telemetry.otel import OtelSettings, TracePipeline, open_pipeline
from arl_trace.export_thread import ExportThread
from support.collector import Collector, a_collector

Opened = Callable[..., ExportThread]
TRACE = 0xABCDEF
PROTOCOLS = ("http/protobuf", "grpc")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    # requests prefers these to the certificate that its session has.
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    async with a_collector() as collector:
        yield collector


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    """Provide a function that opens the pipeline described by its variables and starts the export thread."""
    closing: list[Callable[[], Any]] = []

    def open_all(**variables: str) -> ExportThread:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        pipeline = open_pipeline(OtelSettings(), service="scheduler", version="1")
        assert pipeline is not None
        thread = ExportThread(pipeline.exporters, batch_spans=pipeline.batch_spans)
        thread.start()
        closing.extend((thread.stop, lambda: pipeline.shut_down(within_s=5)))
        return thread

    yield open_all
    for close in closing:
        close()


def a_span(number: int = 1) -> ReadableSpan:
    context = SpanContext(TRACE, number, False, TraceFlags(1))
    resource = Resource({"service.name": "test"})
    return ReadableSpan("batch", context, resource=resource, start_time=1, end_time=2, attributes={"n": number})


def endpoint_of(collector: Collector, protocol: str) -> dict[str, str]:
    url = collector.url if protocol == "http/protobuf" else collector.grpc_url
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_spans_arrive_by_either_protocol(protocol: str, collector: Collector, opened: Opened) -> None:
    assert await opened(**endpoint_of(collector, protocol)).export([a_span()]) is None
    await collector.until(lambda: bool(collector.spans))
    [span] = collector.spans
    assert (int.from_bytes(span.trace_id, "big"), span.name) == (TRACE, "batch")
    assert collector.resources == [{"service.name": "test"}]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("prefix", ["OTEL_EXPORTER_OTLP_", "OTEL_EXPORTER_OTLP_TRACES_"])
async def test_headers_and_compression_are_applied(
    prefix: str, protocol: str, collector: Collector, opened: Opened
) -> None:
    variables = {f"{prefix}HEADERS": "x-tenant=a%20b", f"{prefix}COMPRESSION": "gzip"}
    assert await opened(**endpoint_of(collector, protocol), **variables).export([a_span()]) is None
    await collector.until(lambda: bool(collector.spans))
    assert collector.headers["x-tenant"] == "a b"
    assert collector.compressed or protocol == "grpc"  # gRPC hides what its channel did


async def test_traces_endpoint_is_used_as_it_is(collector: Collector, opened: Opened) -> None:
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    thread = opened(**variables, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{collector.url}/own/path")
    assert await thread.export([a_span()]) is None
    assert collector.path == "/own/path"


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_timeout_bounds_an_export(protocol: str, collector: Collector, opened: Opened) -> None:
    collector.delay_s, collector.status = (30.0, 200) if protocol == "http/protobuf" else (0.0, 503)
    thread = opened(**endpoint_of(collector, protocol), OTEL_EXPORTER_OTLP_TRACES_TIMEOUT="0.3")
    began = time.monotonic()
    assert await thread.export([a_span()])
    assert time.monotonic() - began < 5


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Create a self-signed certificate for 127.0.0.1 and return the files of the certificate and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    directory: Path = tmp_path_factory.mktemp("certificate")
    files = str(directory / "chain.pem"), str(directory / "key.pem")
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
    subprocess.run([*made, "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    return files


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_certificate_variable_is_trusted(protocol: str, certificate: tuple[str, str], opened: Opened) -> None:
    async with a_collector(certificate=certificate) as collector:
        variables = {"OTEL_EXPORTER_OTLP_CERTIFICATE": certificate[0]}
        assert await opened(**endpoint_of(collector, protocol), **variables).export([a_span()]) is None
        await collector.until(lambda: bool(collector.spans))


async def test_unknown_certificate_is_refused(certificate: tuple[str, str], opened: Opened) -> None:
    async with a_collector(certificate=certificate) as collector:
        reason = await opened(**endpoint_of(collector, "http/protobuf"), OTEL_EXPORTER_OTLP_TIMEOUT="1").export(
            [a_span()]
        )
        assert reason
        assert collector.spans == []


async def test_console_exporter_writes_spans(opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    thread = opened(OTEL_TRACES_EXPORTER="console")
    # The exporter took standard output as it was at its import.
    [exporter] = thread._exporters
    written: list[str] = []

    class Out:
        write = written.append

        def flush(self) -> None:
            pass

    exporter.out = Out()  # type: ignore[attr-defined]
    assert await thread.export([a_span()]) is None
    assert json.loads("".join(written))["name"] == "batch"


class ScriptedExporter(SpanExporter):
    """An exporter that returns a preset result and records its batch sizes."""

    def __init__(self, result: SpanExportResult | Exception = SpanExportResult.SUCCESS) -> None:
        self.result = result
        self.batches: list[int] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.batches.append(len(spans))
        if isinstance(self.result, Exception):
            raise self.result
        if self.result is SpanExportResult.FAILURE:
            logging.getLogger("opentelemetry.exporter.scripted").error("it is full")
        return self.result


async def test_exports_are_split_into_batches_for_every_exporter() -> None:
    first, second = ScriptedExporter(), InMemorySpanExporter()
    thread = ExportThread([first, second], batch_spans=2)
    thread.start()
    assert await thread.export([a_span(n) for n in range(1, 6)]) is None
    thread.stop()
    assert first.batches == [2, 2, 1]
    assert len(second.get_finished_spans()) == 5


@pytest.mark.parametrize(
    ("result", "reason"),
    [(SpanExportResult.FAILURE, "it is full"), (KeyError("x"), "KeyError('x')")],
)
async def test_failed_export_returns_the_reason_of_the_exporter(
    result: SpanExportResult | Exception, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    thread = ExportThread([ScriptedExporter(result)], batch_spans=10)
    thread.start()
    assert await thread.export([a_span()]) == reason
    thread.stop()
    assert caplog.records == []


class HangingExporter(SpanExporter):
    """An exporter whose collector never answers, not even at shutdown."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.released.wait(30)
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self.released.wait(30)


async def test_hanging_exporter_blocks_neither_loop_nor_shutdown() -> None:
    hanging = HangingExporter()
    pipeline = TracePipeline(
        exporters=(hanging,), sampler=ALWAYS_ON, resource=Resource({}), limits=SpanLimits(), queue_actions=1
    )
    thread = ExportThread(pipeline.exporters, batch_spans=1)
    thread.start()
    export = asyncio.create_task(thread.export([a_span()]))
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(export, 0.1)
    thread.stop()
    assert not await asyncio.to_thread(pipeline.shut_down, within_s=0.1)
    assert time.monotonic() - began < 5
    hanging.released.set()
