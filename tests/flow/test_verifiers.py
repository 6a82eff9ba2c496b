"""Test verifiers through all services: they run on a core in a sandbox and return scores."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from arl_tangram import AsyncTangram
from support.postgres import Databases
from support.system import API_KEY, System, running_system

pytestmark = pytest.mark.slow
BOMB = {"text": "a" * 40 + "!", "reference": "(a+)+"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    async with running_system(owner_url, driver="namespaces", cores=1) as system:
        yield system
    await databases.drop(owner_url)


async def scored(api: httpx.AsyncClient, service: str, *items: dict[str, str], **changed: Any) -> dict[str, Any]:
    body = {"task": "t", "kind": "score", "service": service, "items": items} | changed
    answer = await api.post("/v1/actions", json=body, params={"wait": 50})
    assert answer.status_code == 200, answer.text
    action: dict[str, Any] = answer.json()
    return action


async def test_verifier_runs_on_a_core_in_a_sandbox(api: httpx.AsyncClient) -> None:
    action = await scored(
        api, "json", {"text": "[1]", "reference": "[1.0]"}, {"text": "no"}, {"text": "[1]", "reference": "("}
    )
    right, wrong, bad = action["result"]["scores"]
    assert (action["outcome"], right["score"], wrong["score"]) == ("ok", 1.0, 0.0)
    assert (bad["error"]["code"], "score" in bad) == ("bad_reference", False)
    assert action["allocation"]["cpu_milli"] == 1000
    assert action["result"]["enforcement"]["net_isolation"] == "enforced"
    assert action["result"]["stdout"]["text"] == ""


async def test_item_that_never_ends_has_a_timeout_error(api: httpx.AsyncClient) -> None:
    action = await scored(api, "regex", BOMB, timeout_s=7.0)
    assert action["outcome"] == "user_error"
    assert action["result"]["scores"][0]["error"]["code"] == "verifier_timeout"


async def test_math_verifier_runs_with_the_packages_of_the_services(api: httpx.AsyncClient) -> None:
    pytest.importorskip("math_verify")
    items = [
        {"text": "$0.5$", "reference": "$\\frac{1}{2}$"},
        {"text": "\\boxed{512}", "reference": "343 and 512"},
        {"text": "\\boxed{5}", "reference": '{"answer": 5}'},
    ]
    action = await scored(api, "math", *items)
    right, wrong, bad = action["result"]["scores"]
    assert (right.get("score"), wrong.get("score")) == (1.0, 0.0), (right, wrong)
    assert bad["error"]["code"] == "bad_reference"


async def test_item_without_a_field_of_its_verifier_is_refused(api: httpx.AsyncClient) -> None:
    body = {"task": "t", "kind": "score", "service": "exact", "items": [{"text": "a"}]}
    answer = await api.post("/v1/actions", json=body)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "items.0.reference")


async def test_sdk_scores_with_a_verifier_like_any_service(api: httpx.AsyncClient, system: System) -> None:
    async with AsyncTangram(system.url, API_KEY) as tangram:
        assert "exact" in {service.name for service in await tangram.reward_services() if service.available}
        assert [entry.score for entry in await tangram.score("exact", [("a", "a"), ("a", "b")])] == [1.0, 0.0]


async def test_blocking_verifier_calls_run_as_separate_actions(api: httpx.AsyncClient) -> None:
    async def call(text: str) -> tuple[str, float]:
        item = {"text": text, "reference": "x"}
        answer = await api.post("/v1/scores", json={"service": "exact", "task": "beside", "items": [item]})
        assert answer.status_code == 200, answer.text
        return answer.json()["action"], answer.json()["scores"][0]["score"]

    found = await asyncio.gather(*(call(text) for text in "xyxy"))
    assert [score for _, score in found] == [1.0, 0.0, 1.0, 0.0]
    assert len({action for action, _ in found}) == 4
