"""A benchmark of exporting every span: no-ops alternate between two simulated nodes, one of which has a collector.

The collector is a sink in this process: it reads the data and discards it. Its cost counts as the client's.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from statistics import median
from typing import Any

from arl_bench.control_plane.overhead import BenchRate, OverheadBenchConfig, measure_cost, run_noops
from arl_bench.harness.bench_system import BenchSystem, bench_system

__all__ = ["run_trace_export"]

SPANS_PER_ACTION = 5
"""Spans of an action that ran once. Each round adds two more."""
SINK_RESPONSE = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n"
DRAIN_TIMEOUT_S = 20.0
POLL_INTERVAL_S = 0.2
Samples = dict[str, list[dict[str, float]]]


def run_trace_export(
    config: OverheadBenchConfig, report_progress: Callable[[str], None]
) -> tuple[dict[str, float], Samples]:
    """Return figures and samples. Raises `RuntimeError` if spans were lost, because the figures would be invalid."""
    return asyncio.run(_measure(config, report_progress))


async def _measure(
    config: OverheadBenchConfig, report_progress: Callable[[str], None]
) -> tuple[dict[str, float], Samples]:
    async with _collector_sink() as url:
        with (
            bench_system(driver="simulated", cores=config.simulated_cores) as plain,
            bench_system(
                driver="simulated",
                cores=config.simulated_cores,
                environment={"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_TRACES_SAMPLER": "always_on"},
            ) as traced,
        ):
            rows = await _measure_rows(plain, traced, config, report_progress)
    return _figures(rows), rows


async def _measure_rows(
    plain: BenchSystem, traced: BenchSystem, config: OverheadBenchConfig, report_progress: Callable[[str], None]
) -> Samples:
    rows: Samples = {"untraced": [], "traced": []}
    warm_up = OverheadBenchConfig(seconds=2.0, batch=config.batch, batches=config.batches)
    async with plain.client() as untraced_client, traced.client() as traced_client:
        for client in (untraced_client, traced_client):
            await run_noops(client, warm_up)
        for repeat in range(config.repeats):
            report_progress(f"repeat {repeat + 1} of {config.repeats}")
            # The order alternates, so that gradual growth affects both equally.
            for name in sorted(rows, reverse=repeat % 2 == 1):
                if name == "untraced":
                    rows[name].append(_to_sample(await measure_cost(plain, run_noops(untraced_client, config)), 0.0))
                else:
                    rows[name].append(await _measure_traced(traced, run_noops(traced_client, config)))
    return rows


async def _measure_traced(system: BenchSystem, work: Any) -> dict[str, float]:
    """Measure, and count the spans exported when the last action is done. Then wait for the remaining spans."""
    before = await _exported_spans(system)
    rate = await measure_cost(system, work)
    sample = _to_sample(rate, await _exported_spans(system) - before)
    ends_at = time.monotonic() + DRAIN_TIMEOUT_S
    while await _exported_spans(system) - before < SPANS_PER_ACTION * rate.done:
        if time.monotonic() > ends_at:
            raise RuntimeError("spans do not come out")
        await asyncio.sleep(POLL_INTERVAL_S)
    return sample


def _to_sample(rate: BenchRate, spans: float) -> dict[str, float]:
    return {
        "done": rate.done,
        "per_s": round(rate.per_s, 3),
        "cpu_ms_each": round(rate.cpu_ms(), 4),
        "scheduler_cpu_ms_each": round(rate.cpu_ms("scheduler"), 4),
        "postgres_cpu_ms_each": round(rate.cpu_ms("postgres"), 4),
        "spans_per_action_in_time": round(spans / rate.done, 3),
    }


async def _exported_spans(system: BenchSystem) -> float:
    text = await system.read_metrics("scheduler")
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("tangram_span"))
    if any(name.startswith("tangram_spans_lost_total") for name in values):
        raise RuntimeError(f"spans were lost: {values}")
    return float(values["tangram_spans_exported_total"])


@asynccontextmanager
async def _collector_sink() -> AsyncIterator[str]:
    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = head.partition(b"content-length:")[2].split(b"\r\n")[0]
                await reader.readexactly(int(length))
                writer.write(SINK_RESPONSE)
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0, limit=1 << 20)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def _figures(rows: Samples) -> dict[str, float]:
    def middle(name: str, value: str) -> float:
        return median(sample[value] for sample in rows[name])

    traced, untraced = middle("traced", "per_s"), middle("untraced", "per_s")
    return {
        "noop_per_s_untraced": round(untraced, 3),
        "noop_per_s_traced": round(traced, 3),
        "traced_ratio": round(traced / untraced, 4),
        "cpu_ms_per_noop_untraced": middle("untraced", "cpu_ms_each"),
        "cpu_ms_per_noop_traced": middle("traced", "cpu_ms_each"),
        "spans_per_action_in_time": middle("traced", "spans_per_action_in_time"),
    }
