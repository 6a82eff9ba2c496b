"""Test the Prometheus metrics of every service after a few actions."""

from collections.abc import AsyncIterator
from functools import partial

import httpx
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from support.conditions import eventually
from support.postgres import Databases
from support.system import API_KEY, METRICS_TOKEN, SERVICES, System, running_system

TRUE = {"task": "coding", "argv": ["true"], "demand": {"cpu": 0.1, "memory_mib": 64}}
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
IDS = {"id", "action", "node_id", "queue_id", "trajectory", "environment", "trace_id"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    async with running_system(owner_url, cores=2) as system:
        async with system.client() as api:
            items = (await api.post("/v1/actions:batch", json={"actions": [TRUE] * 5})).json()["items"]
            await api.post("/v1/actions:wait", json={"ids": [item["id"] for item in items], "timeout_s": 30})
            assert (await api.post("/v1/actions", json=TRUE | {"demand": {"cpu": 4000}})).status_code == 422
            await api.post(
                "/v1/actions", json=TRUE | {"argv": ["sleep", "300"], "demand": {"cpu": 2, "memory_mib": 512}}
            )
            await api.post("/v1/actions", json=TRUE | {"task": "waits", "demand": {"cpu": 1}})
        yield system
    await databases.drop(owner_url)


async def scrape(system: System, service: str) -> Samples:
    headers = {"authorization": f"Bearer {API_KEY if service == 'gateway' else METRICS_TOKEN}"}
    async with httpx.AsyncClient(timeout=20) as client:
        answer = await client.get(f"{system.url_of(service)}/metrics", headers=headers)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(answer.text))
    assert len({family.name for family in families}) == len(families)
    samples = [sample for family in families for sample in family.samples]
    return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"tangram_{name}", frozenset(labels.items())]


async def has_counted(system: System, actions: int, **labels: str) -> bool:
    samples = await scrape(system, "cpu")
    return samples.get(("tangram_actions_settled_total", frozenset(labels.items()))) == actions


async def test_every_service_exports_build_info_and_no_id_labels(system: System) -> None:
    for service in SERVICES:
        samples = await scrape(system, service)
        assert value(samples, "build_info", service=service, version="0.1.0") == 1
        assert value(samples, "pool_acquire_failures_total") == 0
        assert value(samples, "process_resident_memory_bytes") > 0
        assert all(name.startswith("tangram_") for name, _ in samples)
        assert not IDS & {label for _, labels in samples for label, _ in labels}


async def test_requests_are_counted_by_route_template(system: System) -> None:
    async with system.client() as api:
        await api.get("/v1/actions/00000000-0000-7000-8000-000000000000")
        await api.get("/no/such/path")
        # By the short way, and by the framework's.
        for path in ("/v1/scores", "/get_reward", "/t/a/get_reward"):
            assert (await api.post(path, json={"no": 1})).status_code == 422
        assert (await api.get("/v1/scores")).headers["allow"] == "POST"
    samples = await scrape(system, "gateway")
    one = {"method": "GET", "route": "/v1/actions/{id}"}
    assert value(samples, "http_requests_total", status="404", **one) == 1
    assert value(samples, "http_request_duration_seconds_count", **one) == 1
    assert value(samples, "http_requests_total", method="GET", route="none", status="404") == 1
    assert value(samples, "http_requests_total", method="POST", route="/v1/actions:batch", status="202") == 1
    assert value(samples, "http_requests_total", method="POST", route="/v1/scores", status="422") == 1
    assert value(samples, "http_requests_total", method="POST", route="/get_reward", status="422") == 2


async def test_gateway_metrics_require_a_key(system: System) -> None:
    async with httpx.AsyncClient() as client:
        assert (await client.get(f"{system.url}/metrics")).status_code == 401


async def test_internal_metrics_require_the_metrics_token(system: System) -> None:
    async with httpx.AsyncClient() as client:
        for service in (name for name in SERVICES if name != "gateway"):
            for token in ("", "Bearer x", f"Bearer {API_KEY}", f"Bearer {system.token('gateway', service)}"):
                answer = await client.get(f"{system.url_of(service)}/metrics", headers={"authorization": token})
                assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
                assert "metrics_token" in answer.json()["detail"]


async def test_admission_counts_admitted_and_refused_actions(system: System) -> None:
    samples = await scrape(system, "admission")
    assert value(samples, "actions_admitted_total") == 7
    assert value(samples, "actions_refused_total", code="demand_impossible") == 1


async def test_scheduler_exports_the_queue_of_each_task(system: System) -> None:
    samples = await scrape(system, "scheduler")
    waits = {"project": "default", "task": "waits"}
    assert (value(samples, "leader"), value(samples, "queue_depth", **waits)) == (1, 1)
    assert 0 <= value(samples, "queue_oldest_age_seconds", **waits) < 120
    assert value(samples, "grants_total") == 6
    assert value(samples, "allocated_attempts") == 1
    assert value(samples, "round_duration_seconds_count") >= 1
    assert value(samples, "attempts_reclaimed_total") == value(samples, "round_failures_total") == 0


async def test_manager_exports_the_allocations_of_its_node(system: System) -> None:
    samples = await scrape(system, "cpu")
    held = {name: value(samples, "node_allocated", resource=name) for name in ("cpu_cores", "memory_bytes")}
    assert held == {"cpu_cores": 2, "memory_bytes": 512 * 2**20}
    assert value(samples, "node_capacity", resource="cpu_cores") == 2
    assert value(samples, "attempts_running") == 1
    assert value(samples, "environments") == 0
    settled = {"project": "default", "task": "coding", "kind": "exec", "outcome": "ok", "reason": ""}
    # A service counts an action after its commit, when it has read the name of the task.
    await eventually(partial(has_counted, system, 5, **settled))
    assert value(samples, "start_batch_actions_sum") == 6
    assert value(samples, "settle_batch_actions_sum") == 5
    assert value(samples, "poll_failures_total") == 0
