"""Test the command line and the Python client with a router of fake cells."""

import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from aiohttp import web

from arl_tangram import AsyncTangram
from support.cells import PROBLEM, FakeCell, a_router_of, two_cells

KEY = {"id": 3, "project": "default", "prefix": "tk_", "fingerprint": "f", "scopes": [], "created_at": "2026-03-02"}
NODE = {
    **dict.fromkeys(("driver", "kind"), "x"),
    **dict.fromkeys(("registered_at", "last_heartbeat_at"), "2026-03-02T09:00:00Z"),
    "epoch": "00000000-0000-4000-8000-000000000000",
    "capacity": {},
    "alive": True,
    "cordoned": False,
    "running": 0,
    "environments": 0,
    "enforced": [],
}


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


async def cli(api: httpx.AsyncClient, directory: Path, *arguments: str) -> Ended:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TANGRAM_")}
    own = {"TANGRAM_URL": str(api.base_url), "TANGRAM_API_KEY": "tk_x", "TANGRAM_DIR": str(directory)}
    command = [sys.executable, "-m", "arl_tangram.cli", *arguments]
    pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    running = await asyncio.create_subprocess_exec(*command, env={**kept, **own}, **pipes)
    out, err = await running.communicate()
    assert running.returncode is not None
    return Ended(running.returncode, out.decode(), err.decode())


def cells_with_nodes() -> tuple[FakeCell, FakeCell]:
    cells = two_cells()
    for cell in cells:
        cell.answer("GET /v1/admin/nodes", {"items": [{**NODE, "name": f"node-{cell.number}"}]})
    return cells


async def test_client_with_a_cell_sends_all_requests_to_it() -> None:
    one, two = cells_with_nodes()
    async with a_router_of(one, two) as api, AsyncTangram(str(api.base_url), "tk_x", cell=2) as tangram:
        assert [node.name for node in (await tangram.nodes()).items] == ["node-2"]
    assert not one.requests


async def test_nodes_of_several_cells_have_their_cell_and_an_option_chooses_one(tmp_path: Path) -> None:
    async with a_router_of(*cells_with_nodes()) as api:
        listed, one, refused = await asyncio.gather(
            cli(api, tmp_path, "nodes", "list"),
            cli(api, tmp_path, "--cell", "2", "nodes", "list"),
            cli(api, tmp_path, "capacity"),
        )
    rows = [line.split() for line in listed.out.splitlines()]
    assert [(row[0], row[-1]) for row in rows[1:]] == [("node-1", "1"), ("node-2", "2")]
    assert (rows[0][-1], "CELL" in one.out) == ("CELL", False)
    assert [line.split()[0] for line in one.out.splitlines()[1:]] == ["node-2"]
    assert (refused.code, "`tangram --cell NUMBER`" in refused.err) == (2, True)


async def test_key_that_failed_midway_is_created_again_from_its_file(tmp_path: Path) -> None:
    one, two = two_cells()
    sent: list[str] = []

    async def create(request: web.Request) -> web.StreamResponse:
        sent.append((await request.json())["key"])
        return web.json_response({**KEY, "created_at": "2026-03-02T09:00:00Z", "key": sent[-1]}, status=201)

    one.answers["POST /v1/admin/keys"] = create
    two.answer("POST /v1/admin/keys", {**PROBLEM, "status": 422, "code": "unprocessable"}, 422)
    async with a_router_of(one, two) as api:
        failed = await cli(api, tmp_path, "keys", "create")
        two.answers["POST /v1/admin/keys"] = create
        path = tmp_path / "unfinished_key"
        assert (failed.code, f"add `--key-file {path}`" in failed.err, sent[0] in failed.err) == (2, True, False)
        assert (path.stat().st_mode & 0o777, path.read_text().strip()) == (0o600, sent[0])
        made = await cli(api, tmp_path, "keys", "create", "--key-file", str(path))
    assert (made.code, made.out.strip(), len(set(sent)), path.exists()) == (0, sent[0], 1, False)


async def test_key_is_drawn_by_the_gateway_if_the_caller_may_not_choose_it(tmp_path: Path) -> None:
    one = FakeCell(1)
    bodies: list[Any] = []

    async def create(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        if "key" not in bodies[-1]:
            return web.json_response({**KEY, "created_at": "2026-03-02T09:00:00Z", "key": "tk_drawn"}, status=201)
        field = {"field": "key", "message": "needs admin:*"}
        problem = {**PROBLEM, "status": 403, "code": "forbidden", "errors": [field]}
        return web.json_response(problem, status=403, content_type="application/problem+json")

    one.answers["POST /v1/admin/keys"] = create
    async with a_router_of(one) as api:
        made = await cli(api, tmp_path, "keys", "create")
    assert (made.code, made.out.strip(), len(bodies)) == (0, "tk_drawn", 2)
