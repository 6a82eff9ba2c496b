"""Test that a request repeated with its key after a service died returns the same action."""

import asyncio
from typing import Any

import httpx
import pytest

from support.postgres import Databases
from support.rows import rows_in
from support.system import running_system

KEY = {"idempotency-key": "the-one-request"}
BODY = {"task": "t", "argv": ["sleep", "0.1"]}
ANSWERED_S = 60.0
AFTER_THE_COMMIT = [("admission", "admission.after_commit"), ("gateway", "gateway.after_admission_ack")]


async def ids_of(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[str]:
    """Send the same request until all of it is accepted; return the ids of the last answer."""
    async with asyncio.timeout(ANSWERED_S):
        while True:
            try:
                answer = await client.post(path, json=body, headers=KEY)
            except httpx.TransportError:
                await asyncio.sleep(0.05)
                continue
            items = answer.json().get("items", [answer.json()])
            ids = [item["id"] for item in items if "id" in item]
            if answer.is_success and len(ids) == len(items):
                return ids
            await asyncio.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("service", "failpoint"), AFTER_THE_COMMIT)
async def test_key_repeated_after_a_service_death_returns_one_action(
    databases: Databases, service: str, failpoint: str
) -> None:
    """The service dies after the commit and before its response."""
    url = await databases.clone()
    overrides = {service: {"TANGRAM_FAILPOINTS": f"{failpoint}=kill:1"}}
    async with running_system(url, overrides=overrides) as system, rows_in(url) as rows, system.client() as client:
        restarting = asyncio.create_task(system.start_again_without_failpoint(service))
        [id] = await ids_of(client, "/v1/actions", BODY)
        await restarting
        again = await client.post("/v1/actions", json=BODY, headers=KEY)
        assert again.json()["id"] == id
        other = await client.post("/v1/actions", json=BODY | {"argv": ["false"]}, headers=KEY)
        assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
        settled = (await client.get(f"/v1/actions/{id}", params={"wait": 30})).json()
        assert (settled["outcome"], settled["grant_no"]) == ("ok", 1)
        found = await rows.pool.fetch("select id from actions")
        assert [str(row["id"]) for row in found] == [id]
    await databases.drop(url)


@pytest.mark.slow
@pytest.mark.parametrize(("service", "failpoint"), AFTER_THE_COMMIT)
async def test_batch_repeated_after_a_service_death_creates_one_batch(
    databases: Databases, service: str, failpoint: str
) -> None:
    url = await databases.clone()
    overrides = {service: {"TANGRAM_FAILPOINTS": f"{failpoint}=kill:1"}}
    body = {"actions": [BODY] * 20}
    async with running_system(url, overrides=overrides) as system, rows_in(url) as rows, system.client() as client:
        restarting = asyncio.create_task(system.start_again_without_failpoint(service))
        ids = await ids_of(client, "/v1/actions:batch", body)
        await restarting
        found = await rows.pool.fetch("select id from actions order by id")
        assert sorted(ids) == [str(row["id"]) for row in found]
    await databases.drop(url)
