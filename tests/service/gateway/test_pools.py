"""Test node pools through the public API: lease of the controller, listing, removal and metrics."""

import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import httpx
import pytest
import pytest_asyncio

from arl_gateway.app import build
from arl_gateway.settings import GatewaySettings
from arl_store.logins import role_url
from arl_store.migrate import ensure_api_key
from support.postgres import PASSWORDS

ROOT, OTHER = "tk_" + "r" * 32, "tk_" + "o" * 32
POOLS = "/v1/admin/pools"
STATE = {
    "controller": "one",
    "engine": "local",
    "kind": "cpu",
    "min_nodes": 1,
    "max_nodes": 4,
    "wanted": 2,
    "present": 1,
    "ready": 1,
    "decision": "scale_up",
    "reason": "8 cores wait",
}


@pytest_asyncio.fixture
async def api(database: str) -> AsyncIterator[httpx.AsyncClient]:
    await ensure_api_key(database, "default", ROOT)
    await ensure_api_key(database, "other", OTHER)
    settings = GatewaySettings(
        port=1,
        database_url=role_url(database, "gateway", PASSWORDS["gateway"]),
        service_token="t" * 16,
        admission_url="http://127.0.0.1:9",
        scheduler_url="http://127.0.0.1:9",
    )
    app = build(settings)
    headers = {"authorization": f"Bearer {ROOT}"}
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway", headers=headers) as client,
    ):
        yield client


async def publish(api: httpx.AsyncClient, name: str = "cpu", **changed: Any) -> httpx.Response:
    return await api.put(f"{POOLS}/{name}", json=STATE | changed)


async def listed(api: httpx.AsyncClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await api.get(POOLS)).raise_for_status().json()["items"]
    return found


async def test_pool_belongs_to_one_controller_until_its_lease_expires(api: httpx.AsyncClient, database: str) -> None:
    assert (await publish(api)).status_code == 200
    refused = await publish(api, controller="two", wanted=4)
    assert (refused.status_code, "belongs to controller 'one'" in refused.json()["detail"]) == (409, True)
    assert (await publish(api, wanted=3)).json()["wanted"] == 3
    owner = await asyncpg.connect(database)
    await owner.execute("update pools set lease_expires_at = now()")
    await owner.close()
    assert [(pool["controller"], pool["controlled"]) for pool in await listed(api)] == [("one", False)]
    assert (await publish(api, controller="two")).json()["controlled"] is True
    assert (await publish(api)).status_code == 409


async def test_controller_that_gives_its_pool_up_is_followed_at_once(api: httpx.AsyncClient) -> None:
    await publish(api)
    assert (await publish(api, lease_s=0)).json()["controlled"] is False
    assert (await publish(api, controller="two")).status_code == 200


async def test_decision_has_the_time_of_its_last_change(api: httpx.AsyncClient) -> None:
    first = (await publish(api)).json()
    again = (await publish(api, reason="9 cores wait", ready=2)).json()
    assert (again["reason"], again["ready"], again["decided_at"]) == ("9 cores wait", 2, first["decided_at"])
    assert (await publish(api, wanted=3)).json()["decided_at"] > first["decided_at"]


async def test_pool_is_removed_only_without_a_controller(api: httpx.AsyncClient) -> None:
    await publish(api)
    assert (await api.delete(f"{POOLS}/cpu")).status_code == 409
    await publish(api, lease_s=0)
    assert (await api.delete(f"{POOLS}/cpu")).status_code == 204
    assert (await api.delete(f"{POOLS}/cpu")).status_code == 404
    assert await listed(api) == []


async def test_only_changes_of_limits_and_controllers_are_audited(api: httpx.AsyncClient) -> None:
    await publish(api)
    await publish(api, wanted=3, reason="more")
    await publish(api, max_nodes=5, lease_s=0)
    await publish(api, max_nodes=5, controller="two")
    entries = (await api.get("/v1/admin/audit-log")).json()["items"]
    assert [(entry["verb"], entry["target"]) for entry in entries] == 3 * [("pool.change", "pool:cpu")]
    changed = [(entry["detail"]["controller"], entry["detail"]["max_nodes"]) for entry in reversed(entries)]
    assert changed == [("one", 4), ("one", 5), ("two", 5)]


async def test_pools_need_a_key_of_the_first_project(api: httpx.AsyncClient) -> None:
    other = {"authorization": f"Bearer {OTHER}"}
    assert (await api.get(POOLS, headers=other)).status_code == 403
    assert (await api.put(f"{POOLS}/cpu", json=STATE, headers=other)).status_code == 403
    assert (await api.delete(f"{POOLS}/cpu", headers=other)).status_code == 403


@pytest.mark.parametrize(
    ("name", "changed", "field"),
    [
        ("cpu", {"max_nodes": 0}, "max_nodes"),
        ("cpu", {"kind": "tpu"}, "kind"),
        ("cpu", {"wanted": -1}, "wanted"),
        ("cpu", {"reason": "nul \x00"}, "reason"),
        ("cpu", {"draining": [""]}, "draining"),
        ("CPU", {}, "name"),
        ("cpu", {"colour": "red"}, "colour"),
    ],
)
async def test_wrong_state_is_refused_with_its_field(
    api: httpx.AsyncClient, name: str, changed: dict[str, Any], field: str
) -> None:
    answer = await publish(api, name, **changed)
    assert answer.status_code == 422
    assert field in answer.text


async def test_lease_that_is_no_number_is_refused(api: httpx.AsyncClient) -> None:
    body = json.dumps(STATE | {"lease_s": float("nan")})
    answer = await api.put(f"{POOLS}/cpu", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, "lease_s" in answer.text) == (422, True)


async def test_metrics_have_the_nodes_of_each_pool(api: httpx.AsyncClient) -> None:
    await publish(api, draining=["cpu-1"])
    text = (await api.get("/metrics")).text
    for line in ("wanted_nodes", "present_nodes", "ready_nodes", "draining_nodes", "controlled"):
        value = {"wanted_nodes": 2}.get(line, 1)
        assert f'tangram_pool_{line}{{pool="cpu"}} {value}.0' in text
