"""Test that requests with null in optional fields have the effect of requests without them."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from arl_gateway.openapi import MEANINGFUL_NULLS
from support.postgres import Databases
from support.system import System, running_system

DOCUMENT: dict[str, Any] = json.loads((Path(__file__).parents[2] / "openapi" / "gateway.json").read_text())
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
ACTION: dict[str, Any] = {"task": "t", "argv": ["true"], "demand": {"cpu": 0.1, "memory_mib": 64}}
BODIES = [
    pytest.param(method.upper(), path, media, id=operation["operationId"])
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
    if (media := operation.get("requestBody", {}).get("content", {}).get("application/json"))
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    async with running_system(owner_url, cores=8, scores=True) as system:
        yield system
    await databases.drop(owner_url)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def environment(system: System) -> str:
    async with system.client() as api:
        created = await api.post("/v1/environments", json={"task": "t", "trajectory": "nulls"}, params={"wait": 30})
        return str(created.json()["id"])


def with_nulls(schema: dict[str, Any], value: Any) -> Any:
    """Return the value of a schema with null in all optional fields that it lacks, at any depth."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return with_nulls({**SCHEMAS[name], "title": name}, value)
    for choice in (*schema.get("oneOf", ()), *schema.get("anyOf", ())):
        if isinstance(value, dict) and "$ref" in choice and _is_of(SCHEMAS[choice["$ref"].rpartition("/")[2]], value):
            return with_nulls(choice, value)
    if isinstance(value, list):
        return [with_nulls(schema.get("items", {}), each) for each in value]
    if not isinstance(value, dict) or "properties" not in schema:
        return value
    optional = {name for name in schema["properties"] if name not in schema.get("required", ())}
    nulls = {name: None for name in optional if (schema["title"], name) not in MEANINGFUL_NULLS}
    return nulls | {name: with_nulls(schema["properties"].get(name, {}), each) for name, each in value.items()}


def code_of(response: httpx.Response) -> Any:
    content = response.json() if response.content else None
    return content.get("code") if isinstance(content, dict) else None


def _is_of(schema: dict[str, Any], value: dict[str, Any]) -> bool:
    constants = {name: each["const"] for name, each in schema.get("properties", {}).items() if "const" in each}
    return all(value.get(name) == constant for name, constant in constants.items())


@pytest.mark.parametrize(("method", "path", "media"), BODIES)
async def test_request_with_nulls_has_the_status_of_the_request_without(
    system: System, environment: str, method: str, path: str, media: dict[str, Any]
) -> None:
    async with system.client() as api:
        url = path.format_map({"id": environment, "task": "t", "name": "none", "trajectory": "nulls", "port": 8000})
        for example in media["examples"].values():
            await api.request(method, url, json=example["value"])  # what it creates exists for both of the others
            before = await api.request(method, url, json=example["value"])
            nulled = await api.request(method, url, json=with_nulls(media["schema"], example["value"]))
            # A gateway learns of a new reward service within a second, which may be between two requests.
            after = await api.request(method, url, json=example["value"])
            plain = [(each.status_code, code_of(each)) for each in (before, after)]
            assert (nulled.status_code, code_of(nulled)) in plain, nulled.text


async def test_submission_with_nulls_gets_the_defaults(system: System) -> None:
    nulls = {"kind": None, "stdin": None, "timeout_s": None, "elasticity": None, "labels": None, "require": None}
    demand = {"cpu": None, "memory_mib": None, "disk_mib": None, "pids": None, "resources": None}
    action = {"task": "defaults", "argv": ["true"]}
    async with system.client() as api:
        plain = await api.post("/v1/actions", json=action, params={"wait": 30})
        nulled = await api.post("/v1/actions", json={**action, "demand": demand, **nulls}, params={"wait": 30})
        resolved = await api.post("/v1/actions?wait=30&x=1", json={**action, "demand": demand, **nulls})
    assert plain.json()["outcome"] == "ok"
    for each in (nulled, resolved):
        assert each.status_code == plain.status_code, each.text
        assert each.json()["demand"] == plain.json()["demand"]


async def test_batch_with_nulls_accepts_every_action(system: System) -> None:
    async with system.client() as api:
        batch = {"gang": None, "actions": [{**ACTION, "retries": None}, {**ACTION, "task": None}]}
        first, second = (await api.post("/v1/actions:batch", json=batch)).json()["items"]
    assert "id" in first
    assert second["problem"]["errors"][0]["field"] == "actions.1.task"


async def test_null_that_clears_a_setting_still_clears_it(system: System) -> None:
    async with system.client() as api:
        await api.post("/v1/actions", json={**ACTION, "task": "cleared"}, params={"wait": 30})
        url = "/v1/admin/queues/cleared"
        assert (await api.patch(url, json={"quota": {"running": 1, "endpoints": None}, "max_queued": 7})).is_success
        kept = await api.patch(url, json={"paused": None, "weight": None})
        cleared = await api.patch(url, json={"quota": None, "max_queued": None})
        queues = {each["task"]: each for each in (await api.get("/v1/admin/queues")).json()["items"]}
    assert kept.is_success
    assert cleared.is_success
    assert "quota" not in queues["cleared"]
    assert "max_queued" not in queues["cleared"]


async def test_null_in_free_form_values_and_required_fields_is_not_removed(system: System) -> None:
    async with system.client() as api:
        for wrong in ({"task": None}, {"labels": {"a": None}}, {"argv": [None]}, {"unknown": None}):
            refused = await api.post("/v1/actions", json={**ACTION, "priority": None, **wrong})
            (error,) = refused.json()["errors"]
            assert refused.status_code == 422
            assert error["field"].startswith(next(iter(wrong))), error
