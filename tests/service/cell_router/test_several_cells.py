"""Test requests that concern several cells: changes of all cells, waits, and the end of a trajectory."""

import asyncio
from typing import Any

from aiohttp import web

from arl_store.values import uuid7
from support.cells import PROBLEM, a_router_of, two_cells, wait_down

KEY = {"id": 3, "fingerprint": "f", "created_at": "2026-03-02T09:00:00Z"}


async def test_change_is_applied_to_no_cell_while_one_is_down() -> None:
    one, two = two_cells()
    async with a_router_of(one, two) as api:
        two.is_ready = False
        await wait_down(api, 2)
        for refused in (
            await api.patch("/v1/admin/queues/t", json={"paused": True}),
            await api.post("/v1/admin/keys", json={}),
            await api.delete("/v1/admin/keys/4097"),
        ):
            assert refused.status_code == 503
            assert refused.json()["detail"].startswith("cell 2 does not answer; nothing was changed")
    assert not one.requests


async def test_change_that_fails_midway_names_the_cells_that_have_it() -> None:
    one, two = two_cells()
    one.answer("PATCH /v1/admin/queues/t", {"task": "t", "queued": 1, "running": 0})
    two.answer("PATCH /v1/admin/queues/t", PROBLEM, 503)
    async with a_router_of(one, two) as api:
        lost = await api.patch("/v1/admin/queues/t", json={"paused": True})
        two.answer("PATCH /v1/admin/queues/t", {**PROBLEM, "detail": "no queue"}, 404)
        refused = await api.patch("/v1/admin/queues/t", json={"paused": True})
        two.answer("PATCH /v1/admin/queues/t", {"task": "t", "queued": 2, "running": 0})
        done = await api.patch("/v1/admin/queues/t", json={"paused": True})
    said = "; cell 1 did, and the same request may be repeated"
    assert (lost.status_code, lost.json()["detail"]) == (503, f"cell 2 did not confirm the change{said}")
    assert (refused.status_code, refused.json()["detail"]) == (409, f"cell 2 refused the change: no queue{said}")
    assert (done.status_code, done.json()["queued"]) == (200, 3)


async def test_repeated_creation_of_a_key_sends_the_same_key() -> None:
    one, two = two_cells()
    sent: list[str] = []

    async def create(request: web.Request) -> web.StreamResponse:
        sent.append((await request.json())["key"])
        return web.json_response({**KEY, "key": sent[-1]}, status=201)

    one.answers["POST /v1/admin/keys"] = create
    two.answer("POST /v1/admin/keys", PROBLEM, 503)
    async with a_router_of(one, two) as api:
        failed = await api.post("/v1/admin/keys", json={"scopes": ["actions:read"]})
        assert (failed.status_code, sent[0] in failed.text) == (503, False)
        two.answers["POST /v1/admin/keys"] = create
        made = await api.post("/v1/admin/keys", json={"scopes": ["actions:read"]})
        assert (made.status_code, made.json()["id"]) == (201, 3 * 4096 + 1)
        await api.post("/v1/admin/keys", json={"scopes": ["actions:read"]})
    assert (len(set(sent[:3])), len(set(sent[3:]))) == (1, 1)
    assert sent[0] != sent[3]


async def test_node_is_changed_in_its_only_cell() -> None:
    one, two = two_cells()
    one.answer("GET /v1/admin/nodes", {"items": [{"name": "a"}, {"name": "both"}]})
    two.answer("GET /v1/admin/nodes", {"items": [{"name": "b"}, {"name": "both"}]})
    async with a_router_of(one, two) as api:
        changed = await api.patch("/v1/admin/nodes/b", json={"cordoned": True})
        ambiguous = await api.patch("/v1/admin/nodes/both", json={"cordoned": True})
        unknown = await api.delete("/v1/admin/nodes/c")
    assert (changed.json(), two.bodies) == ({"served_by": 2}, [{"cordoned": True}])
    assert (ambiguous.status_code, ambiguous.json()["errors"][0]["field"]) == (409, "header.Tangram-Cell")
    assert (unknown.status_code, one.bodies) == (404, [])


async def test_wait_asks_a_cell_again_that_could_not_answer() -> None:
    one, two = two_cells()
    ids = [str(uuid7(cell)) for cell in (1, 2)]
    one.answer("POST /v1/actions:wait", {"settled": [{"id": ids[0]}], "pending": [], "unknown": []})
    attempts: list[Any] = []

    async def wait(request: web.Request) -> web.StreamResponse:
        attempts.append(await request.json())
        settled = {"settled": [{"id": ids[1]}], "pending": [], "unknown": []}
        return web.json_response(PROBLEM if len(attempts) < 3 else settled, status=503 if len(attempts) < 3 else 200)

    two.answers["POST /v1/actions:wait"] = wait
    async with a_router_of(one, two) as api:
        answer = await api.post("/v1/actions:wait", json={"ids": ids[::-1], "timeout_s": 10})
    assert answer.json() == {"settled": [{"id": ids[1]}, {"id": ids[0]}], "pending": [], "unknown": []}
    assert [each["ids"] for each in attempts] == [[ids[1]]] * 3
    assert 10 >= attempts[0]["timeout_s"] > attempts[2]["timeout_s"] > 5


async def test_wait_for_any_ends_with_the_first_cell_and_cancels_the_others() -> None:
    one, two = two_cells()
    ids = [str(uuid7(cell)) for cell in (1, 2, 9)]
    gone = asyncio.Event()

    async def settle(request: web.Request) -> web.StreamResponse:
        is_poll = (await request.json())["timeout_s"] == 0
        settled, pending = ([], ids[:1]) if is_poll else ([{"id": ids[0]}], [])
        return web.json_response({"settled": settled, "pending": pending, "unknown": []})

    async def wait(request: web.Request) -> web.StreamResponse:
        if (await request.json())["timeout_s"] == 0:
            return web.json_response({"settled": [], "pending": ids[1:2], "unknown": []})
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()
        raise AssertionError

    one.answers["POST /v1/actions:wait"], two.answers["POST /v1/actions:wait"] = settle, wait
    async with a_router_of(one, two) as api:
        answer = await api.post("/v1/actions:wait", json={"ids": ids, "until": "any", "timeout_s": 30})
        await asyncio.wait_for(gone.wait(), 10)
    assert answer.json() == {"settled": [{"id": ids[0]}], "pending": [ids[1]], "unknown": [ids[2]]}
    assert "tangram-missing-cells" not in answer.headers


async def test_wait_for_any_returns_what_every_cell_has_settled() -> None:
    """A cell that always answers first must not hide the settled actions of a slower one."""
    one, two = two_cells()
    ids = [str(uuid7(cell)) for cell in (1, 2)]
    first = asyncio.Event()

    async def settle(request: web.Request) -> web.StreamResponse:
        first.set()
        return web.json_response({"settled": [{"id": ids[0]}], "pending": [], "unknown": []})

    async def settle_later(request: web.Request) -> web.StreamResponse:
        await first.wait()
        await asyncio.sleep(0.05)
        return web.json_response({"settled": [{"id": ids[1]}], "pending": [], "unknown": []})

    one.answers["POST /v1/actions:wait"], two.answers["POST /v1/actions:wait"] = settle, settle_later
    async with a_router_of(one, two) as api:
        answer = await api.post("/v1/actions:wait", json={"ids": ids, "until": "any", "timeout_s": 30})
    assert [action["id"] for action in answer.json()["settled"]] == ids


async def test_end_of_a_trajectory_reaches_every_cell() -> None:
    one, two = two_cells()
    path = "/v1/trajectories/a%2Fb"
    one.answer(f"DELETE {path.replace('%2F', '/')}", {**PROBLEM, "status": 404, "detail": "no such trajectory"}, 404)
    async with a_router_of(one, two) as api:
        assert (await api.delete(path, params={"task": "t"})).status_code == 200
        two.answers = dict(one.answers)
        assert (await api.delete(path, params={"task": "t"})).json()["detail"] == "no such trajectory"
        two.is_ready = False
        await wait_down(api, 2)
        assert (await api.delete(path, params={"task": "t"})).status_code == 503
        one.answer(f"DELETE {path.replace('%2F', '/')}", {**PROBLEM, "status": 422, "detail": "no name"}, 422)
        assert (await api.delete(path, params={"task": "t"})).status_code == 422
