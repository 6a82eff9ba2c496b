"""Test that log lines carry their trace id and that no log or row contains a secret."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import httpx
import pytest_asyncio

from support.postgres import PASSWORDS, Databases
from support.rows import Rows, rows_in
from support.system import API_KEY, SERVICES, System, running_system

VALUE, SOURCE = "env-secret-5417", "source-secret-5417"
SECRETS = {"task": "t", "source": f"x = '{SOURCE}'", "env": {"TOKEN": VALUE}, "demand": {"cpu": 0.1}}


@pytest_asyncio.fixture
async def system(databases: Databases) -> AsyncIterator[System]:
    """Run a system on its own database, because the tests break the database."""
    owner_url = await databases.clone()
    async with running_system(owner_url, cores=4) as system:
        yield system
    await databases.drop(owner_url)


@asynccontextmanager
async def unreachable_database(databases: Databases, system: System) -> AsyncIterator[None]:
    name = urlsplit(system.owner_url).path.removeprefix("/")
    admin = await asyncpg.connect(databases.server.owner_url("postgres"))
    try:
        await admin.execute(f"alter database {name} connection limit 0")
        await admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1 and usename <> current_user",
            name,
        )
        yield
    finally:
        await admin.execute(f"alter database {name} connection limit -1")
        await admin.close()


def lines_of(system: System, service: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in system.log(service).splitlines()]


def traces_of(system: System, service: str) -> set[str]:
    return {line["trace_id"] for line in lines_of(system, service) if "trace_id" in line}


def traceparent(number: int) -> dict[str, str]:
    return {"traceparent": f"00-{number:032x}-00000000000000aa-01"}


async def test_log_lines_carry_the_request_trace_in_every_service(databases: Databases, system: System) -> None:
    """The gateway has cached the key by then, so the last request reaches admission."""
    async with system.client() as api, httpx.AsyncClient() as prober:
        assert (await api.get("/v1/actions")).status_code == 200
        async with unreachable_database(databases, system):
            for number, service in enumerate(SERVICES, 1):
                answer = await prober.get(f"{system.url_of(service)}/readyz", headers=traceparent(number))
                assert answer.status_code == 503
            hop = await api.post("/v1/actions", json=SECRETS, headers=traceparent(99))
            assert (hop.status_code, hop.json()["trace_id"]) == (503, f"{99:032x}")
    for number, service in enumerate(SERVICES, 1):
        assert f"{number:032x}" in traces_of(system, service)
    assert f"{99:032x}" in traces_of(system, "admission")


async def test_unexpected_error_is_logged_with_its_trace_id(system: System) -> None:
    async with rows_in(system.owner_url) as rows, system.client() as api:
        await rows.execute("alter table nodes rename column driver to pilot")
        answer = await api.get("/v1/admin/nodes", headers=traceparent(7))
    assert (answer.status_code, answer.json()["trace_id"]) == (500, f"{7:032x}")
    (line,) = [line for line in lines_of(system, "gateway") if line["level"] == "error"]
    assert line["trace_id"] == f"{7:032x}"
    assert "driver" in line["exception"]


async def test_secrets_are_absent_from_logs_and_unrelated_rows(databases: Databases, system: System) -> None:
    """The test covers a run, refusals and rejected rows, because Postgres errors quote the rows."""
    async with rows_in(system.owner_url) as rows, system.client() as api:
        assert (await api.post("/v1/actions", json=SECRETS, params={"wait": 20})).json()["outcome"] == "ok"
        assert (await api.post("/v1/actions", json=SECRETS | {"nice": VALUE})).status_code == 422
        assert (await api.get("/v1/actions", headers={"authorization": f"Bearer {API_KEY}x"})).status_code == 401
        created = (await api.post("/v1/admin/keys", json={})).json()["key"]
        async with unreachable_database(databases, system):
            answer = await api.post("/v1/actions", json=SECRETS)
            assert answer.status_code == 503, f"{answer.text}\n{system.log('admission')}\n{system.log('gateway')}"
        secrets = [API_KEY, created, VALUE, SOURCE, *PASSWORDS.values(), *(system.secret(each) for each in SERVICES)]
        assert await tables_with(rows, secrets) == {"action_specs"}
        await rows.execute("alter table action_specs add constraint never check (timeout_s < 0) not valid")
        assert (await api.post("/v1/actions", json=SECRETS)).status_code == 500
    logs = "".join(system.log(service) for service in SERVICES)
    assert "violates check constraint" in logs
    assert [secret for secret in secrets if secret in logs] == []


async def tables_with(rows: Rows, secrets: list[str]) -> set[str]:
    """Return the tables with a row that contains a secret, as text or as bytes."""
    forms = [form for secret in secrets for form in (secret, secret.encode().hex())]
    names = "select table_name from information_schema.tables where table_schema = 'public' and table_type <> 'VIEW'"
    found = set()
    for table in [record["table_name"] for record in await rows.pool.fetch(names)]:
        sql = f"select exists (select from {table} as t, unnest($1::text[]) as form where strpos(t::text, form) > 0)"
        if await rows.value(sql, forms):
            found.add(table if "_specs" not in table else "action_specs")
    return found
