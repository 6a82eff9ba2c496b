"""Test that results of actions that end while Postgres cannot be reached are kept, and lost fences change nothing."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from aiohttp import web

from arl_store.logins import role_url
from support.conditions import eventually
from support.endpoint import Asked, External, external
from support.outages import (
    State,
    audit_when_idle,
    postgres_link,
    restarting,
    spooled_files,
    stoppable_postgres,
    submit,
    until_states,
    waits_for,
)
from support.postgres import PASSWORDS, Databases
from support.rows import Rows, rows_in
from support.system import System, running_system

CUT_S = 60.0
ELSEWHERE = {"TANGRAM_DRIVER": "simulated", "TANGRAM_NODE_NAME": "elsewhere", "TANGRAM_CPU_CORES": "1"}


async def output_of(rows: Rows, action: str) -> str:
    return str((await rows.value("select stdout from action_results where id = $1", action)).decode())


async def total(system: System, name: str) -> float:
    lines = (await system.metrics("cpu")).splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"tangram_{name} "))


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [False, True], ids=["manager lives", "manager restarts"])
async def test_node_cut_off_from_postgres_keeps_the_results_that_are_still_its_own(
    databases: Databases, tmp_path: Path, restarts: bool
) -> None:
    """Its lease lapses, so others get its fresh actions. Its persistent environments and their actions stay its own."""
    url, release = await databases.clone(), tmp_path / "release"
    ends: dict[str, Any] = {"argv": waits_for(release)}
    kept = {"trajectory": "kept", "environment": {"scope": "trajectory"}}
    actions = {
        "fresh": ends,
        "again": ends | {"retries": 1},
        "kept": ends | kept,
        "goes on": {"argv": ["sleep", "345681"]},
        "next": {"argv": ["echo", "next"]} | kept,
    }
    async with postgres_link(url) as link, rows_in(url) as rows:
        overrides = {"cpu": {"TANGRAM_DATABASE_URL": link.url(role_url(url, "cpu", PASSWORDS["cpu"]))}}
        overrides["cpu-2"] = ELSEWHERE
        async with (
            running_system(url, driver="unsafe-local", cores=2, overrides=overrides) as system,
            system.client() as client,
        ):
            ids = await submit(client, actions)
            await until_states(
                rows, ids, dict.fromkeys(("fresh", "again", "kept", "goes on"), ("running", None, None, 1))
            )
            link.cut()
            cut_at = asyncio.get_running_loop().time()
            release.touch()
            await eventually(lambda: len(spooled_files(system)) == 3)
            await system.start("cpu-2")
            lost: dict[str, State] = {
                "fresh": ("settled", "infra_error", "node_lost", 1),
                "again": ("settled", "ok", None, 2),
                "goes on": ("settled", "infra_error", "node_lost", 1),
            }
            await until_states(rows, ids, lost | {"kept": ("running", None, None, 1)})
            if restarts:
                system.kill("cpu")
                async with restarting(system, "cpu"):
                    await asyncio.sleep(max(0.0, cut_at + CUT_S - asyncio.get_running_loop().time()))
                    link.restore()
            else:
                await asyncio.sleep(max(0.0, cut_at + CUT_S - asyncio.get_running_loop().time()))
                link.restore()
            ok: State = ("settled", "ok", None, 1)
            await until_states(rows, ids, lost | {"kept": ok, "next": ok})
            assert [await output_of(rows, ids[name]) for name in ("kept", "next")] == ["done\n", "next\n"]
            assert spooled_files(system) == []
            assert await total(system, "results_replayed_total") == 1
            assert await total(system, "results_refused_total") == 2
            await client.delete("/v1/trajectories/kept", params={"task": "t"})
            assert (await audit_when_idle(client)).findings == []
    await databases.drop(url)


@pytest_asyncio.fixture
async def there() -> AsyncIterator[External]:
    async with external() as there:
        yield there


@pytest.mark.slow
async def test_results_survive_the_death_of_their_node_while_postgres_is_down(tmp_path: Path, there: External) -> None:
    """Manager, broker and launcher die, so only the disk has the results. Time without Postgres expires no lease."""
    release, may_answer = tmp_path / "release", asyncio.Event()

    async def answer(_: Asked) -> web.StreamResponse:
        await may_answer.wait()
        return web.Response(text="answered")

    there.answer = answer
    ttl = {"TANGRAM_NODE_TTL_S": "20"}
    overrides = {"scheduler": ttl, "cpu": ttl}
    overrides["api"] = ttl | {"TANGRAM_ENDPOINTS": f'{{"e": {{"url": "{there.url}"}}}}'}
    kept = {"trajectory": "kept", "environment": {"scope": "trajectory"}}
    actions: dict[str, dict[str, Any]] = {
        "call": {"kind": "call", "endpoint": "e", "request": {"method": "POST", "path": "x"}},
        "fresh": {"argv": waits_for(release, "fresh")},
        "kept": {"argv": waits_for(release, "kept")} | kept,
        "next": {"argv": ["true"]} | kept,
    }
    async with stoppable_postgres() as (switch, server):
        url = await Databases(server).clone()
        async with (
            running_system(url, driver="unsafe-local", cores=2, overrides=overrides) as system,
            rows_in(url) as rows,
            system.client() as client,
        ):
            await system.start("api")
            ids = await submit(client, actions)
            await until_states(rows, ids, dict.fromkeys(("call", "fresh", "kept"), ("running", None, None, 1)))
            await eventually(lambda: there.in_flight == 1)
            await switch.stop()
            release.touch()
            may_answer.set()
            await eventually(lambda: len(spooled_files(system)) == 3)
            for name in ("cpu", "launcher", "api"):
                system.kill(name)
            (system.directory / "l.sock").unlink()
            await system.start("launcher")
            async with restarting(system, "cpu", "api"):
                await switch.start()
            await until_states(rows, ids, dict.fromkeys(("call", "fresh", "kept"), ("settled", "ok", None, 1)))
            # The scheduler may have granted it between the replay and the registration of the new node.
            gone = await rows.until_state(UUID(ids["next"]), "settled")
            assert (gone["outcome"], gone["reason"]) == ("infra_error", "environment_lost")
            assert [await output_of(rows, ids[name]) for name in ("call", "fresh", "kept")] == [
                *("answered", "fresh\n", "kept\n")
            ]
            assert await total(system, "results_replayed_total") == 2
            assert len(there.asked) == 1, "the call was not repeated"
            assert spooled_files(system) == []
            assert (await audit_when_idle(client)).findings == []
