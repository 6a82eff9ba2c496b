"""Test requests that concern several cells: changes of all cells, waits, and the end of a trajectory."""

import asyncio
from typing import Any

from aiohttp import web

from arl_cell_router.routing.cell_routing import CellRouting, RequestFacts
from arl_store.values import uuid7
from support.cells import PROBLEM, FakeCell, a_router_of, two_cells, wait_down, wait_up

KEY = {"id": 3, "fingerprint": "f", "created_at": "2026-03-02T09:00:00Z"}


async def test_change_is_applied_to_no_cell_while_one_is_down() -> None:
    one, two = two_cells()
    async with a_router_of(one, two) as api:
        two.is_ready = False
        await wait_down(api, 2)
        for refused in (
            await api.patch("/v1/admin/queues/t", json={"paused": True}),
            await api.post("/v1/admin/keys", json={}),
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
        two.answer("PATCH /v1/admin/queues/t", {**PROBLEM, "detail": "no weight"}, 422)
        refused = await api.patch("/v1/admin/queues/t", json={"paused": True})
        two.answer("PATCH /v1/admin/queues/t", {"task": "t", "queued": 2, "running": 0})
        done = await api.patch("/v1/admin/queues/t", json={"paused": True})
    said = "; cell 1 did, and the same request may be repeated"
    assert (lost.status_code, lost.json()["detail"]) == (503, f"cell 2 did not confirm the change{said}")
    assert (refused.status_code, refused.json()["detail"]) == (409, f"cell 2 refused the change: no weight{said}")
    assert (done.status_code, done.json()["queued"]) == (200, 3)


async def test_change_of_a_queue_creates_it_in_cells_that_do_not_have_it() -> None:
    one, two = two_cells()
    path, queue = "/v1/admin/queues/t", {"task": "t", "queued": 0, "running": 0, "paused": True}
    one.answer(f"PATCH {path}", {**queue, "queued": 1})

    async def change(request: web.Request) -> web.StreamResponse:
        if request.query.get("create") == "true":
            return web.json_response({**queue, "given": await request.json()})
        return web.json_response({**PROBLEM, "status": 404}, status=404)

    two.answers[f"PATCH {path}"] = change
    async with a_router_of(one, two) as api:
        done = await api.patch(path, json={"paused": True})
        one.answers[f"PATCH {path}"] = change
        unknown = await api.patch(path, json={"paused": True})
    assert (done.status_code, done.json()["queued"]) == (200, 1)
    assert unknown.status_code == 404
    assert [request.query_string for request in two.requests] == ["", "create=true", ""]


async def test_key_is_revoked_in_the_cells_that_answer() -> None:
    one, two = two_cells()
    for number, cell in enumerate((one, two), 3):
        cell.answer("GET /v1/admin/keys", {"items": [{**KEY, "id": number}]})
        cell.answer(f"DELETE /v1/admin/keys/{number}", {**KEY, "id": number, "revoked_at": KEY["created_at"]})
    async with a_router_of(one, two) as api:
        two.is_ready = False
        await wait_down(api, 2)
        partly = await api.delete(f"/v1/admin/keys/{3 * 4096 + 1}")
        assert (partly.status_code, one.paths[-1]) == (503, "DELETE /v1/admin/keys/3")
        assert partly.json()["detail"].startswith("the key was revoked in cell 1 and may still be valid in cell 2")
        unknown = await api.delete(f"/v1/admin/keys/{4 * 4096 + 2}")
        assert (unknown.status_code, "the id is from cell 2" in unknown.json()["detail"]) == (503, True)
        two.is_ready = True
        await wait_up(api, 2)
        done = await api.delete(f"/v1/admin/keys/{3 * 4096 + 1}")
        assert (done.status_code, done.json()["revoked_at"]) == (200, KEY["created_at"])
    assert two.paths[-1] == "DELETE /v1/admin/keys/4"


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


TRAJECTORY = "/v1/trajectories/a%2Fb"
UNKNOWN = {**PROBLEM, "status": 404, "code": "not_found", "detail": "no such trajectory"}


def first_cell_of_the_trajectory(cells: tuple[FakeCell, FakeCell]) -> tuple[FakeCell, FakeCell]:
    """Return the cell of the trajectory's hash, then the other one."""
    first = CellRouting({1: 1.0, 2: 1.0}).choose_cell(RequestFacts(trajectory=("t", "a/b")))
    return cells if first == 1 else (cells[1], cells[0])


async def test_end_of_a_trajectory_goes_to_the_cell_of_its_hash() -> None:
    cells = two_cells()
    first, other = first_cell_of_the_trajectory(cells)
    async with a_router_of(*cells) as api:
        assert (await api.delete(TRAJECTORY, params={"task": "t"})).status_code == 200
        assert (len(first.requests), len(other.requests)) == (1, 0)
        first.answer("DELETE /v1/trajectories/a/b", UNKNOWN, 404)
        assert (await api.delete(TRAJECTORY, params={"task": "t"})).status_code == 200
        assert (len(first.requests), len(other.requests)) == (2, 1)
        other.answers = dict(first.answers)
        assert (await api.delete(TRAJECTORY, params={"task": "t"})).json()["detail"] == "no such trajectory"
        first.answer("DELETE /v1/trajectories/a/b", {**UNKNOWN, "status": 422}, 422)
        assert (await api.delete(TRAJECTORY, params={"task": "t"})).status_code == 422


async def test_end_of_a_trajectory_is_refused_while_its_cell_is_down() -> None:
    cells = two_cells()
    first, other = first_cell_of_the_trajectory(cells)
    async with a_router_of(*cells) as api:
        first.is_ready = False
        await wait_down(api, first.number)
        assert (await api.delete(TRAJECTORY, params={"task": "t"})).status_code == 503
        assert not other.requests
        first.is_ready, other.is_ready = True, False
        first.answer("DELETE /v1/trajectories/a/b", UNKNOWN, 404)
        await wait_up(api, first.number)
        await wait_down(api, other.number)
        assert (await api.delete(TRAJECTORY, params={"task": "t"})).status_code == 503


async def test_end_of_a_step_goes_to_all_cells_and_needs_one_that_knows_the_task() -> None:
    one, two = two_cells()
    path = "/v1/tasks/a%2Fb/steps/3:end"
    async with a_router_of(one, two) as api:
        one.answer("POST /v1/tasks/a/b/steps/3:end", UNKNOWN, 404)
        assert (await api.post(path)).status_code == 200
        assert (len(one.requests), len(two.requests)) == (1, 1)
        two.answers = dict(one.answers)
        assert (await api.post(path)).status_code == 404
        two.is_ready = False
        await wait_down(api, two.number)
        assert (await api.post(path)).status_code == 503
