"""Test that a cell that is slow, frozen or busy delays the requests for other cells for a limited time only."""

import asyncio
import time
from typing import Any

import pytest
from aiohttp import web

from arl_cell_router.cells import cell_sessions
from arl_store.values import uuid7
from support.cells import FakeCell, a_router_of, is_up, two_cells, wait_down
from support.conditions import eventually

ENDED = "/v1/trajectories/environment-"


async def never(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


def a_batch() -> dict[str, Any]:
    return {"actions": [{"task": "t", "environment": {"id": str(uuid7(cell))}} for cell in (1, 2)]}


def answer_parts(cell: FakeCell) -> None:
    cell.answer("POST /v1/actions:batch", {"items": [{"id": str(uuid7(cell.number))}]}, 202)
    cell.answer("GET /v1/actions", {"items": [{"id": str(uuid7(cell.number))}]})


async def check_partial_answers(api: Any) -> None:
    """The part of cell 1 is answered, that of cell 2 is refused or missing."""
    ended = f"{ENDED}{uuid7(2)}"
    batch, listed, end = await asyncio.gather(
        api.post("/v1/actions:batch", json=a_batch(), headers={"idempotency-key": "k"}),
        api.get("/v1/actions"),
        api.delete(ended, params={"task": "t"}),
    )
    items = batch.json()["items"]
    assert (batch.status_code, "id" in items[0], items[1]["problem"]["code"]) == (202, True, "cell_unavailable")
    assert items[1]["problem"]["retry_after_s"] == 2
    assert (len(listed.json()["items"]), listed.headers["tangram-missing-cells"]) == (1, "2")
    assert (end.status_code, end.json()["code"]) == (503, "cell_unavailable")


async def test_requests_of_several_cells_end_when_a_frozen_cell_is_found_to_be_down() -> None:
    one, two = two_cells()
    answer_parts(one)
    async with a_router_of(one, two, cell_answer_s=20, cell_batch_s=20) as api:
        two.is_frozen = True
        at = time.monotonic()
        await check_partial_answers(api)
        assert time.monotonic() - at < 5
        assert not await is_up(api, 2)


async def test_requests_of_several_cells_wait_a_limited_time_for_a_cell_that_stays_up() -> None:
    one, two = two_cells()
    answer_parts(one)
    for route in ("POST /v1/actions:batch", "GET /v1/actions"):
        two.answers[route] = never
    async with a_router_of(one, two, cell_answer_s=0.4, cell_batch_s=0.8) as api:
        two.answers[f"DELETE {ENDED}{(id := uuid7(2))}"] = never
        at = time.monotonic()
        end = await api.delete(f"{ENDED}{id}", params={"task": "t"})
        batch = await api.post("/v1/actions:batch", json=a_batch(), headers={"idempotency-key": "k"})
        listed = await api.get("/v1/actions")
        assert time.monotonic() - at < 5
        assert (end.status_code, "no response within 0.4 s" in end.json()["detail"]) == (503, True)
        items = batch.json()["items"]
        assert ("id" in items[0], "no response within 0.8 s" in items[1]["problem"]["detail"]) == (True, True)
        assert listed.headers["tangram-missing-cells"] == "2"
        assert await is_up(api, 2)


async def test_wait_goes_on_when_a_frozen_cell_is_back() -> None:
    one, two = two_cells()
    ids = [str(uuid7(cell)) for cell in (1, 2)]
    for cell, id in zip((one, two), ids, strict=True):
        cell.answer("POST /v1/actions:wait", {"settled": [{"id": id}], "pending": [], "unknown": []})
    async with a_router_of(one, two) as api:
        two.is_frozen = True
        waiting = asyncio.create_task(api.post("/v1/actions:wait", json={"ids": ids, "timeout_s": 15}))
        await wait_down(api, 2)
        two.is_frozen = False
        answer = await waiting
    assert [action["id"] for action in answer.json()["settled"]] == ids


async def test_cell_with_all_connections_in_use_stays_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_sessions, "CONNECT_TIMEOUT_S", 0.5)
    one, two = two_cells()
    path = f"/v1/actions/{uuid7(2)}"
    two.answers[f"GET {path}"] = never
    async with a_router_of(one, two, cell_connections=2) as api:
        open_requests = [asyncio.create_task(api.get(path)) for _ in range(2)]
        await eventually(lambda: len(two.requests) == 2)
        for _ in range(3):  # longer than two failed checks take
            refused = await api.get(path)
            assert (refused.status_code, refused.json()["code"]) == (503, "cell_busy")
            assert refused.json()["detail"].startswith("too many requests to cell 2 are open")
            assert (refused.headers["retry-after"], refused.headers["tangram-cell"]) == ("2", "2")
            assert await is_up(api, 2)
        for request in open_requests:
            request.cancel()


async def test_wait_asks_a_busy_gateway_after_the_time_that_it_names() -> None:
    one, two = two_cells()
    ids = [str(uuid7(cell)) for cell in (1, 2)]
    one.answer("POST /v1/actions:wait", {"settled": [{"id": ids[0]}], "pending": [], "unknown": []})
    asked_at: list[float] = []

    async def refuse_first(request: web.Request) -> web.StreamResponse:
        asked_at.append(time.monotonic())
        if len(asked_at) == 1:
            return web.json_response({}, status=503, headers={"retry-after": "2"})
        return web.json_response({"settled": [{"id": ids[1]}], "pending": [], "unknown": []})

    two.answers["POST /v1/actions:wait"] = refuse_first
    async with a_router_of(one, two) as api:
        await api.post("/v1/actions:wait", json={"ids": ids, "timeout_s": 10})
    assert asked_at[1] - asked_at[0] >= 1.9
