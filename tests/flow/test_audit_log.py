"""Test the audit log by API, SDK and command line: order, pages, filters and visibility."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from arl_store.migrate import ensure_api_key
from arl_tangram import AsyncTangram, Tangram
from support.postgres import Databases
from support.system import API_KEY, System, running_system

AUDIT_LOG = "/v1/admin/audit-log"
OTHERS_KEY = "tk_" + "o" * 32


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    """Run a system with five audited changes: three weights of `labs/other` and one key per project."""
    owner_url = await databases.clone()
    await ensure_api_key(owner_url, "labs/other", OTHERS_KEY)
    async with running_system(owner_url, cores=1) as system:
        async with system.client() as api:
            for weight in (2, 3, 4):
                await api.patch("/v1/admin/projects/labs/other", json={"weight": weight})
            await api.post("/v1/admin/keys", json={})
            await api.post("/v1/admin/keys", json={}, headers={"authorization": f"Bearer {OTHERS_KEY}"})
        yield system
    await databases.drop(owner_url)


async def entries(api: httpx.AsyncClient, **query: Any) -> list[dict[str, Any]]:
    answer = await api.get(AUDIT_LOG, params=query)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["items"])


async def test_entries_are_listed_newest_first_with_key_and_detail(api: httpx.AsyncClient) -> None:
    found = await entries(api)
    assert [each["verb"] for each in found] == ["key.create"] * 2 + ["project.change"] * 3
    assert [each["id"] for each in found] == sorted((each["id"] for each in found), reverse=True)
    newest = found[2]
    assert (newest["project"], newest["target"]) == ("default", "project:labs/other")
    assert newest["detail"] == {"weight": 4.0}
    assert newest["api_key_id"] == found[1]["api_key_id"] != found[0]["api_key_id"]


async def test_pages_by_before_list_every_entry_once(api: httpx.AsyncClient) -> None:
    ids, before = [], None
    while True:
        query = {"limit": 2} | ({"before": before} if before is not None else {})
        page = (await api.get(AUDIT_LOG, params=query)).json()
        ids += [each["id"] for each in page["items"]]
        if "next_before" not in page:
            break
        before = page["next_before"]
    assert ids == [each["id"] for each in await entries(api)]


async def test_filters_select_by_verb_and_project(api: httpx.AsyncClient) -> None:
    assert len(await entries(api, verb="project.change")) == 3
    assert [each["verb"] for each in await entries(api, project="labs/other")] == ["key.create"]
    assert await entries(api, verb="queue.change", project="default") == []


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"limit": 0}, "query.limit"),
        ({"limit": 1001}, "query.limit"),
        ({"before": 0}, "query.before"),
        ({"before": 2**63}, "query.before"),
        ({"verb": "key create"}, "query.verb"),
        ({"project": "\x00"}, "query.project"),
    ],
)
async def test_invalid_query_is_refused_by_field(api: httpx.AsyncClient, query: dict[str, Any], field: str) -> None:
    answer = await api.get(AUDIT_LOG, params=query)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)


async def test_other_project_reads_only_its_own_entries(system: System) -> None:
    async with system.client() as api:
        api.headers["authorization"] = f"Bearer {OTHERS_KEY}"
        assert [(each["project"], each["verb"]) for each in await entries(api)] == [("labs/other", "key.create")]
        assert await entries(api, project="default") == []


async def test_key_without_admin_read_is_forbidden(system: System, api: httpx.AsyncClient) -> None:
    key = (await api.post("/v1/admin/keys", json={"scopes": ["actions:*"]})).json()["key"]
    answer = await api.get(AUDIT_LOG, headers={"authorization": f"Bearer {key}"})
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


async def test_sdk_lists_the_same_entries_sync_and_async(system: System) -> None:
    def read() -> list[float]:
        with Tangram(system.url, API_KEY) as tangram:
            return [each.detail["weight"] for each in tangram.audit_log(limit=2, verb="project.change")]

    assert await asyncio.to_thread(read) == [4.0, 3.0]
    async with AsyncTangram(system.url, API_KEY) as tangram:
        newest, *_ = await tangram.audit_log(verb="project.change", project="default")
        assert newest.detail == {"weight": 4.0}
        older = await tangram.audit_log(before=newest.id, verb="project.change")
        assert [each.detail["weight"] for each in older] == [3.0, 2.0]


async def run_cli(system: System, *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "arl_tangram.cli", "audit-log", *arguments),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "TANGRAM_URL": system.url, "TANGRAM_API_KEY": API_KEY},
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0
    return printed.decode()


async def test_audit_log_command_prints_text_and_json(system: System) -> None:
    query = ("--limit", "1", "--verb", "project.change")
    headings, line = (await run_cli(system, *query)).splitlines()
    assert headings.split() == ["ID", "TIME", "(UTC)", "PROJECT", "KEY", "VERB", "TARGET", "DETAIL"]
    assert "project.change  project:labs/other" in line
    assert line.endswith('{"weight": 4.0}')
    [entry] = json.loads(await run_cli(system, *query, "-o", "json"))["items"]
    assert (entry["verb"], entry["detail"]) == ("project.change", {"weight": 4.0})
