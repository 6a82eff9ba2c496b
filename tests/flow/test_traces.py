"""Test that `/trace` matches the rows' timestamps and that collectors get the same spans."""

import asyncio
import secrets
import signal
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest_asyncio
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import format_span_id, format_trace_id

from arl_core.durations.estimates import MIN_STRAGGLER_RUNS
from arl_store.migrate import ensure_api_key
from arl_tangram import AsyncTangram
from support.collector import Collector, a_collector
from support.conditions import eventually
from support.postgres import Databases
from support.rows import Rows, rows_in
from support.system import API_KEY, System, running_system

TRUE: dict[str, Any] = {"task": "t", "argv": ["true"], "demand": {"cpu": 0.1}}
LONG = {**TRUE, "argv": ["sleep", "300"]}
OTHER_KEY = "tk_fedcba9876543210fedcba9876543210"
ROW = "select created_at, granted_at, started_at, settled_at, run_us from actions where id = $1"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def collector() -> AsyncIterator[Collector]:
    async with a_collector() as collector:
        yield collector


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases, collector: Collector) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    exports = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=a%20b",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test",
        "OTEL_TRACES_SAMPLER": "parentbased_always_on",
        "TANGRAM_NODE_TTL_S": "2",
        "TANGRAM_TRACE_ROUNDS": "true",
    }
    overrides = {"scheduler": exports, "cpu": {"TANGRAM_NODE_TTL_S": "2", "TANGRAM_BEAT_S": "0.4"}}
    async with running_system(owner_url, cores=64, overrides=overrides) as system:
        yield system
    await databases.drop(owner_url)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def rows(system: System) -> AsyncIterator[Rows]:
    async with rows_in(system.owner_url) as rows:
        yield rows


async def settled(api: httpx.AsyncClient, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    answer = await api.post("/v1/actions", json=body, params={"wait": 50}, headers=headers)
    assert answer.status_code == 200, answer.text
    action: dict[str, Any] = answer.json()
    return action


async def trace_of(api: httpx.AsyncClient, id: str) -> dict[str, Any]:
    answer = await api.get(f"/v1/actions/{id}/trace")
    assert answer.status_code == 200, answer.text
    trace: dict[str, Any] = answer.json()
    return trace


def named(trace: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {span["name"]: span for span in trace["spans"]}


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def nanoseconds(text: str) -> int:
    moment = at(text)
    return int(moment.timestamp()) * 10**9 + moment.microsecond * 1000


class TestTrace:
    async def test_span_times_are_the_timestamps_of_the_row(self, api: httpx.AsyncClient, rows: Rows) -> None:
        action = await settled(api, {**TRUE, "argv": ["sleep", "0.05"]})
        trace = await trace_of(api, action["id"])
        row = await rows.pool.fetchrow(ROW, UUID(action["id"]))
        assert [span["name"] for span in trace["spans"]] == [
            *("create action", "queue wait", "grant", "process action", "settle")
        ]
        spans = named(trace)
        ends = {name: (at(span["started_at"]), at(span["ended_at"])) for name, span in spans.items()}
        assert ends["create action"] == (row["created_at"], row["settled_at"])
        assert ends["queue wait"] == (row["created_at"], row["granted_at"])
        assert ends["grant"] == (row["granted_at"], row["started_at"])
        assert ends["process action"][0] == row["started_at"]
        assert spans["process action"]["duration_ms"] == row["run_us"] / 1000
        assert ends["settle"] == (ends["process action"][1], row["settled_at"])
        assert all(span["parent_span_id"] == spans["create action"]["span_id"] for span in trace["spans"][1:])

    async def test_queued_and_running_actions_have_open_spans(self, api: httpx.AsyncClient, rows: Rows) -> None:
        runs = (await api.post("/v1/actions", json={**LONG, "demand": {"cpu": 64}})).json()
        await rows.until_value("running", "select state from actions where id = $1", UUID(runs["id"]))
        waits = (await api.post("/v1/actions", json={**TRUE, "demand": {"cpu": 1}})).json()
        for id, last in ((runs["id"], "process action"), (waits["id"], "queue wait")):
            trace = await trace_of(api, id)
            still = [span["name"] for span in trace["spans"] if "ended_at" not in span]
            assert still == ["create action", last]
            await api.delete(f"/v1/actions/{id}")

    async def test_trace_of_another_project_is_not_found(self, system: System, api: httpx.AsyncClient) -> None:
        action = await settled(api, TRUE)
        await ensure_api_key(system.owner_url, "other", OTHER_KEY)
        headers = {"authorization": f"Bearer {OTHER_KEY}"}
        answers = [
            await api.get(f"/v1/actions/{action['id']}/trace", headers=headers),
            await api.get(f"/v1/actions/{uuid4()}/trace"),
        ]
        assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(404, "not_found")] * 2


class TestExport:
    async def test_exported_action_is_one_trace_below_the_client_span(
        self, api: httpx.AsyncClient, collector: Collector
    ) -> None:
        trace_id, parent = secrets.token_hex(16), secrets.token_hex(8)
        action = await settled(api, TRUE, traceparent=f"00-{trace_id}-{parent}-03", tracestate="vendor=1")
        await collector.until(lambda: len(collector.of_trace(trace_id)) == 5)
        spans = {span.name: span for span in collector.of_trace(trace_id)}
        root = spans.pop("create action")
        assert (root.parent_span_id.hex(), root.kind, root.trace_state) == (parent, Span.SPAN_KIND_PRODUCER, "vendor=1")
        assert {span.parent_span_id for span in spans.values()} == {root.span_id}
        assert spans["process action"].kind == Span.SPAN_KIND_CONSUMER
        for span in (await trace_of(api, action["id"]))["spans"]:
            sent = spans.get(span["name"], root)
            assert sent.span_id.hex() == span["span_id"]
            assert sent.start_time_unix_nano == nanoseconds(span["started_at"])
            assert sent.end_time_unix_nano == nanoseconds(span["ended_at"])

    async def test_spans_carry_trajectory_step_labels_demand_and_exit_code(
        self, api: httpx.AsyncClient, collector: Collector
    ) -> None:
        trace_id = secrets.token_hex(16)
        context = {"traceparent": f"00-{trace_id}-{secrets.token_hex(8)}-01"}
        told = {"trajectory": "rollout-7", "step": 3, "labels": {"suite": "hard"}, "argv": ["true"]}
        action = await settled(api, {**TRUE, **told}, **context)
        await collector.until(lambda: len(collector.of_trace(trace_id)) == 5)
        spans = {span.name: span for span in collector.of_trace(trace_id)}
        first, ran = (
            {each.key: each.value.string_value or each.value.int_value for each in spans[name].attributes}
            for name in ("create action", "process action")
        )
        assert first["session.id"] == first["tangram.trajectory"] == "rollout-7"
        assert (first["tangram.step"], first["tangram.label.suite"]) == (3, "hard")
        assert first["tangram.demand.cpu_milli"] == 100
        assert ran["process.exit.code"] == 0
        of_trace = named(await trace_of(api, action["id"]))
        assert of_trace["process action"]["attributes"]["process.exit.code"] == "0"

    async def test_span_of_the_python_client_is_the_parent(self, system: System, collector: Collector) -> None:
        tracer = TracerProvider(shutdown_on_exit=False).get_tracer("trainer")
        async with AsyncTangram(system.url, API_KEY) as tangram:
            with tracer.start_as_current_span("rollout") as span:
                await tangram.run(task="t", argv=["true"], cpu=0.1)
        context = span.get_span_context()
        trace_id = format_trace_id(context.trace_id)
        await collector.until(lambda: bool(collector.of_trace(trace_id)))
        [root] = [span for span in collector.of_trace(trace_id) if span.name == "create action"]
        assert root.parent_span_id.hex() == format_span_id(context.span_id)

    async def test_action_without_a_client_span_starts_the_returned_trace(
        self, api: httpx.AsyncClient, collector: Collector
    ) -> None:
        answer = await api.post("/v1/actions", json=TRUE, params={"wait": 20})
        trace_id = answer.headers["traceparent"].split("-")[1]
        assert (await trace_of(api, answer.json()["id"]))["trace_id"] == trace_id
        await collector.until(lambda: bool(collector.of_trace(trace_id)))
        [root] = [span for span in collector.of_trace(trace_id) if span.name == "create action"]
        assert root.parent_span_id == b""

    async def test_scheduler_round_is_its_own_trace_with_links_both_ways(
        self, api: httpx.AsyncClient, collector: Collector
    ) -> None:
        trace_id = secrets.token_hex(16)
        await settled(api, TRUE, traceparent=f"00-{trace_id}-{secrets.token_hex(8)}-01")
        await collector.until(lambda: bool(collector.of_trace(trace_id)))
        [granted] = [span for span in collector.of_trace(trace_id) if span.name == "grant"]
        [link] = granted.links
        await collector.until(lambda: bool(collector.of_trace(link.trace_id.hex())))
        done = next(span for span in collector.of_trace(link.trace_id.hex()) if span.name == "scheduler round")
        assert (done.span_id, done.parent_span_id) == (link.span_id, b"")
        assert trace_id in {back.trace_id.hex() for back in done.links}

    async def test_standard_otel_variables_are_applied(self, api: httpx.AsyncClient, collector: Collector) -> None:
        trace_id = secrets.token_hex(16)
        await settled(api, TRUE, traceparent=f"00-{trace_id}-{secrets.token_hex(8)}-01")
        await collector.until(lambda: bool(collector.of_trace(trace_id)))
        assert (collector.headers["x-tenant"], collector.headers["content-encoding"]) == ("a b", "gzip")
        assert collector.resources[-1]["deployment.environment"] == "test"
        assert collector.resources[-1]["service.name"] == "tangram-scheduler"

    async def test_unsampled_action_is_exported_only_if_it_failed(
        self, api: httpx.AsyncClient, collector: Collector
    ) -> None:
        fine, late, marker = (secrets.token_hex(16) for _ in range(3))
        parent = secrets.token_hex(8)
        await settled(api, TRUE, traceparent=f"00-{fine}-{parent}-00")
        await settled(api, {**LONG, "timeout_s": 0.05}, traceparent=f"00-{late}-{parent}-00")
        await settled(api, TRUE, traceparent=f"00-{marker}-{parent}-01")
        await collector.until(lambda: bool(collector.of_trace(marker)) and bool(collector.of_trace(late)))
        assert collector.of_trace(fine) == []
        failed = next(span for span in collector.of_trace(late) if span.name == "create action")
        assert (failed.status.code, failed.status.message) == (Status.STATUS_CODE_ERROR, "user_timeout")

    async def test_unsampled_straggler_is_exported_with_its_limit(
        self, api: httpx.AsyncClient, collector: Collector
    ) -> None:
        alike = {**TRUE, "profile": "straggles", "argv": ["sleep", "0.02"]}
        for _ in range(MIN_STRAGGLER_RUNS):
            await settled(api, alike)
        trace_id = secrets.token_hex(16)
        headers = {"traceparent": f"00-{trace_id}-{secrets.token_hex(8)}-00"}
        slow = (await api.post("/v1/actions", json={**alike, "argv": ["sleep", "300"]}, headers=headers)).json()

        async def is_seen() -> bool:
            return "straggler" in (await api.get(f"/v1/actions/{slow['id']}/explain")).json()

        await eventually(is_seen)
        await api.delete(f"/v1/actions/{slow['id']}")
        await collector.until(lambda: bool(collector.of_trace(trace_id)))
        [ran] = [span for span in collector.of_trace(trace_id) if span.name == "process action"]
        [limit_ms] = [each.value.int_value for each in ran.attributes if each.key == "tangram.straggler.limit_ms"]
        assert limit_ms > 100

    async def test_spans_are_exported_after_the_collector_recovers(
        self, system: System, api: httpx.AsyncClient, collector: Collector
    ) -> None:
        # The SDK itself tries again after a 503, and gives up after a 500.
        collector.status, asked = 500, collector.requests
        try:
            trace_id = secrets.token_hex(16)
            await settled(api, TRUE, traceparent=f"00-{trace_id}-{secrets.token_hex(8)}-01")
            await collector.until(lambda: collector.requests > asked)
        finally:
            collector.status = 200
        await collector.until(lambda: bool(collector.of_trace(trace_id)))
        metrics = await system.metrics("scheduler")
        assert "tangram_span_export_failures_total 0.0" not in metrics


async def test_trace_after_a_manager_kill_has_both_attempts(
    system: System, api: httpx.AsyncClient, rows: Rows, collector: Collector
) -> None:
    body = {**TRUE, "argv": ["sleep", "2"], "retries": 1}
    action = (await api.post("/v1/actions", json=body)).json()
    await rows.until_value("running", "select state from actions where id = $1", UUID(action["id"]))
    system.kill("cpu", signal.SIGKILL)
    await system.start("cpu")
    async with asyncio.timeout(50):
        while (done := (await api.get(f"/v1/actions/{action['id']}?wait=20")).json())["state"] != "settled":
            pass
    assert (done["outcome"], done["failures"]) == ("ok", 1)
    assert "reason" not in done
    trace = await trace_of(api, action["id"])
    attempts = [(span["name"], span["attempt"], span.get("error")) for span in trace["spans"] if "attempt" in span]
    assert attempts == [
        *(("queue wait", 1, None), ("grant", 1, None), ("process action", 1, "node_lost")),
        *(("queue wait", 2, None), ("grant", 2, None), ("process action", 2, None)),
    ]
    lost, waits = trace["spans"][3], trace["spans"][4]
    assert lost["ended_at"] == waits["started_at"]
    await collector.until(lambda: len(collector.of_trace(trace["trace_id"])) == 8)
