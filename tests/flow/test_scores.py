"""Test scores through all services: durable, batched, correct and never an accidental 0."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio

from arl_core.residency.occupancy import ResidencyState
from support.conditions import eventually, is_running
from support.postgres import Databases
from support.system import System, running_system

REFERENCE: dict[str, Any] = json.loads((Path(__file__).parents[1] / "support" / "minilm_reference.json").read_text())
TEXTS: list[str] = REFERENCE["texts"]
COSINES = np.array(REFERENCE["embeddings"]) @ np.array(REFERENCE["embeddings"]).T
SHORT = [at for at, text in enumerate(TEXTS) if len(text) < 100]
"""Indices of the eight texts shorter than 100 characters."""
TOLERANCE = 1e-4
CLIENTS = 32


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    async with running_system(owner_url, scores=True) as system:
        yield system
    await databases.drop(owner_url)


def scored(*pairs: tuple[str, str], **changed: Any) -> dict[str, Any]:
    items = [{"text": text, "reference": reference} for text, reference in pairs]
    return {"task": "deep-search", "kind": "score", "service": "minilm", "items": items} | changed


async def settled(api: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    answer = await api.post("/v1/actions", json=body, params={"wait": 50})
    assert answer.status_code == 200, answer.text
    action: dict[str, Any] = answer.json()
    return action


async def scores_of(api: httpx.AsyncClient, count: int) -> None:
    """Score one item per call from many concurrent clients and check every score."""
    at = [(SHORT[number % 8], SHORT[(number // 8 + number) % 8]) for number in range(count)]
    work = iter(at)

    async def client() -> list[tuple[int, int, float]]:
        found = []
        for one, other in work:
            action = await settled(api, scored((TEXTS[one], TEXTS[other]), task="many"))
            assert action["outcome"] == "ok", action
            [entry] = action["result"]["scores"]
            found.append((one, other, entry["score"]))
        return found

    found = [each for part in await asyncio.gather(*(client() for _ in range(CLIENTS))) for each in part]
    assert len(found) == count
    assert max(abs(score - COSINES[one, other]) for one, other, score in found) < TOLERANCE


async def test_concurrent_clients_get_correct_scores_in_shared_batches(api: httpx.AsyncClient, system: System) -> None:
    await scores_of(api, 150)
    metrics = await system.metrics("gpu")
    said = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
    assert float(said["tangram_gpu_items_total"]) >= 150
    assert float(said["tangram_gpu_batches_total"]) < 150
    states = {
        state: float(said[f'tangram_gpu_residency{{service="minilm",state="{state}"}}']) for state in ResidencyState
    }
    assert states == {**dict.fromkeys(ResidencyState, 0.0), ResidencyState.RESIDENT: 1.0}
    assert float(said["tangram_gpu_restore_seconds_count"]) == 1


async def test_trace_of_a_score_shows_device_wait_and_weight_restore(api: httpx.AsyncClient) -> None:
    async def took(**changed: Any) -> dict[str, dict[str, Any]]:
        action = await settled(api, scored((TEXTS[0], TEXTS[1]), (TEXTS[1], TEXTS[2]), **changed))
        spans = (await api.get(f"/v1/actions/{action['id']}/trace")).json()["spans"]
        assert [span["started_at"] for span in spans[1:]] == sorted(span["started_at"] for span in spans[1:])
        return {span["name"]: span for span in spans}

    await took()
    spans = await took()
    assert "restore weights" not in spans
    batch, process = spans["batch"], spans["process action"]
    about = {"tangram.service": "minilm", "tangram.device": "0", "tangram.items": "2", "tangram.actions": "1"}
    assert about.items() <= batch["attributes"].items()
    assert {batch["parent_span_id"], spans["device wait"]["parent_span_id"]} == {process["span_id"]}
    assert spans["device wait"]["ended_at"] <= batch["started_at"] < batch["ended_at"] <= process["ended_at"]
    cold = await took(service="quality", items=[{"text": "def f(x): return x"}, {"text": "def g(x): return x"}])
    assert cold["restore weights"]["parent_span_id"] == cold["batch"]["span_id"]
    assert 0 < cold["restore weights"]["duration_ms"] <= cold["batch"]["duration_ms"]


async def test_scores_of_one_action_are_in_item_order(api: httpx.AsyncClient) -> None:
    pairs = [(text, other) for text in TEXTS[:6] for other in TEXTS]
    action = await settled(api, scored(*pairs))
    found = [entry["score"] for entry in action["result"]["scores"]]
    assert np.abs(np.array(found) - COSINES[:6].flatten()).max() < TOLERANCE
    assert action["allocation"] == {"slots:minilm": 1}
    assert action["result"]["cpu_s"] > 0


async def test_unscorable_item_has_an_error_and_no_score(api: httpx.AsyncClient) -> None:
    action = await settled(api, scored((TEXTS[0], TEXTS[0]), (" ", "x"), ("x", "\n")))
    good, *bad = action["result"]["scores"]
    assert (action["outcome"], good["score"]) == ("ok", pytest.approx(1.0, abs=TOLERANCE))
    assert [entry["error"]["code"] for entry in bad] == ["empty_text", "empty_reference"]
    assert not any("score" in entry for entry in bad)


async def test_action_without_any_score_is_a_user_error(api: httpx.AsyncClient) -> None:
    action = await settled(api, scored((" ", "x")))
    assert (action["outcome"], action["reason"]) == ("user_error", "no_item_scored")


async def test_unknown_service_is_refused_with_available_services(api: httpx.AsyncClient) -> None:
    answer = await api.post("/v1/actions", json=scored(("a", "b"), service="nobody"))
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (422, "reward_service_not_found")
    assert (problem["errors"][0]["field"], "minilm" in problem["detail"]) == ("service", True)


async def test_item_without_a_required_field_is_refused(api: httpx.AsyncClient) -> None:
    answer = await api.post("/v1/actions", json=scored(("a", "b")) | {"items": [{"text": "a"}]})
    problem = answer.json()
    assert (answer.status_code, problem["errors"][0]["field"]) == (422, "items.0.reference")
    assert "`similarity` takes text and reference" in problem["detail"]


@pytest.mark.parametrize(
    "changed",
    [
        {"items": []},
        {"service": None},
        {"argv": ["true"]},
        {"demand": {"cpu": 2}},
        {"kind": "exec", "argv": ["true"]},
        {"items": [{"text": "a" * (64 << 10), "reference": ""}] * 17},
    ],
)
async def test_invalid_score_action_is_refused(api: httpx.AsyncClient, changed: dict[str, Any]) -> None:
    answer = await api.post("/v1/actions", json=scored(("a", "b")) | changed)
    assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed")


async def test_registry_reports_residency_and_score_counts(api: httpx.AsyncClient) -> None:
    await settled(api, scored((TEXTS[0], TEXTS[1])))

    async def is_said() -> bool:
        services = (await api.get("/v1/reward-services")).json()["items"]
        service = next(service for service in services if service["name"] == "minilm")
        [node] = service["nodes"]
        return bool(node["state"] == "resident" and node["scores"] > 0 and node["in_flight"] == 0)

    await eventually(is_said)
    one = (await api.get("/v1/reward-services/minilm")).json()
    assert (one["kind"], one["available"], one["max_tokens"]) == ("similarity", True, REFERENCE["max_tokens"])
    assert (await api.get("/v1/reward-services/nobody")).status_code == 404


async def test_killed_worker_fails_its_batch_without_a_wrong_score(api: httpx.AsyncClient, system: System) -> None:
    """The running action ends with an infrastructure error. The queued actions are scored correctly."""
    await settled(api, scored((TEXTS[0], TEXTS[1])))
    worker = worker_of(system)
    os.kill(worker, signal.SIGSTOP)
    pairs = [(TEXTS[0], TEXTS[1])] * 3
    ids: list[str] = []
    for _ in range(3):
        ids.append((await api.post("/v1/actions", json=scored(*pairs, task="killed"))).json()["id"])
        await eventually(lambda: are_running(api, ids))
    os.kill(worker, signal.SIGKILL)
    ends = [(await api.get(f"/v1/actions/{id}", params={"wait": 30})).json() for id in ids]
    assert (ends[0]["outcome"], ends[0]["reason"]) == ("infra_error", "worker_died")
    assert "scores" not in ends[0]["result"]
    for end in ends[1:]:
        assert [entry["score"] for entry in end["result"]["scores"]] == [
            pytest.approx(COSINES[0, 1], abs=TOLERANCE)
        ] * len(pairs)
    assert worker_of(system) != worker


def worker_of(system: System) -> int:
    manager = system.processes["gpu"].pid
    [worker] = Path(f"/proc/{manager}/task/{manager}/children").read_text().split()
    return int(worker)


async def are_running(api: httpx.AsyncClient, ids: list[str]) -> bool:
    states = [(await api.get(f"/v1/actions/{id}")).json()["state"] for id in ids]
    return states == ["running"] * len(ids)


@pytest.mark.slow
async def test_two_thousand_items_of_concurrent_clients_are_scored_correctly(api: httpx.AsyncClient) -> None:
    await scores_of(api, 2000)


@pytest.mark.slow
async def test_killed_manager_loses_no_retryable_score(api: httpx.AsyncClient, system: System) -> None:
    bodies = [scored((TEXTS[number % 10], TEXTS[0]), retries=3, task="restart") for number in range(200)]
    items = (await api.post("/v1/actions:batch", json={"actions": bodies})).json()["items"]
    worker = worker_of(system)
    system.kill("gpu")
    await eventually(lambda: not is_running(worker))
    await system.start("gpu")
    for number, item in enumerate(items):
        action = (await api.get(f"/v1/actions/{item['id']}", params={"wait": 50})).json()
        assert action["outcome"] == "ok", action
        assert action["result"]["scores"][0]["score"] == pytest.approx(COSINES[number % 10, 0], abs=TOLERANCE)


@pytest.mark.slow
async def test_action_split_across_two_devices_is_scored_correctly(databases: Databases) -> None:
    devices = {"TANGRAM_DEVICES": "cpu,cpu", "TANGRAM_BATCH_TOKENS": "128", "TANGRAM_DEVICE_MIB": "100"}
    owner_url = await databases.clone()
    async with running_system(owner_url, scores=True, overrides={"gpu": devices}) as system, system.client() as api:
        pairs = [(number % len(TEXTS), number % 7) for number in range(96)]
        action = await settled(api, scored(*((TEXTS[one], TEXTS[other]) for one, other in pairs)))
        found = [entry["score"] for entry in action["result"]["scores"]]
        right = [COSINES[one, other] for one, other in pairs]
        assert max(abs(score - cosine) for score, cosine in zip(found, right, strict=True)) < TOLERANCE
        manager = system.processes["gpu"].pid
        assert len(Path(f"/proc/{manager}/task/{manager}/children").read_text().split()) == 2
    await databases.drop(owner_url)
