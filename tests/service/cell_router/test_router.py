"""Test the router in front of fake cells: forwarding and faults."""

import asyncio
import json
import time
from hashlib import sha256
from typing import Any

import pytest
from aiohttp import web

from arl_store.values import uuid7
from support.cells import PROBLEM, FakeCell, a_router_of, is_up, two_cells, wait_down
from support.conditions import eventually


async def test_request_reaches_its_cell_unchanged_without_headers_of_the_connection() -> None:
    one, two = two_cells()
    id = uuid7(2)
    async with a_router_of(one, two) as api:
        sent = {"connection": "x-hop", "x-hop": "1", "x-end": "2", "x-forwarded-for": "10.0.0.9", "te": "trailers"}
        answer = await api.put(f"/v1/environments/{id}/files/a%2Fb?x=%20y", json={"a": 1}, headers=sent)
    assert (answer.json(), answer.headers["tangram-cell"]) == ({"served_by": 2}, "2")
    [request] = two.requests
    assert (request.raw_path, two.bodies) == (f"/v1/environments/{id}/files/a%2Fb?x=%20y", [{"a": 1}])
    assert request.headers["x-forwarded-for"] == "10.0.0.9, 127.0.0.1"
    assert (request.headers["x-end"], request.headers["authorization"]) == ("2", "Bearer tk_x")
    assert {"x-hop", "te"}.isdisjoint(request.headers)
    assert "traceparent" not in request.headers
    assert not one.requests


async def test_trace_of_the_client_and_that_of_the_cell_pass_through() -> None:
    one, two = two_cells()
    sent, returned = (f"00-{digit * 32}-{digit * 16}-01" for digit in "ab")

    async def respond(request: web.Request) -> web.StreamResponse:
        return web.json_response({}, headers={"traceparent": returned})

    path = f"/v1/actions/{uuid7(2)}"
    two.answers[f"GET {path}"] = respond
    async with a_router_of(one, two) as api:
        answer = await api.get(path, headers={"traceparent": sent})
    assert (two.requests[0].headers["traceparent"], answer.headers.get_list("traceparent")) == (sent, [returned])


async def test_header_chooses_the_cell_of_any_request() -> None:
    one, two = two_cells()
    async with a_router_of(one, two) as api:
        assert (await api.get("/v1/admin/capacity", headers={"tangram-cell": "2"})).json() == {"served_by": 2}
        for path in ("/v1/admin/capacity", "/v1/admin/audit-log"):
            refused = await api.get(path)
            assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "header.Tangram-Cell")
            assert "`tangram --cell NUMBER`" in refused.json()["detail"]
        assert (await api.get("/v1/actions", headers={"tangram-cell": "3"})).status_code == 400


async def test_output_passes_through_while_it_arrives_and_ends_with_the_client() -> None:
    [cell] = cells = (FakeCell(1),)
    gone = asyncio.Event()

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        try:
            await response.write(b"data: first\n\n")
            await asyncio.Event().wait()
        finally:
            gone.set()
        return response

    path = f"/v1/actions/{uuid7(1)}/logs"
    cell.answers[f"GET {path}"] = stream
    async with a_router_of(*cells, FakeCell(2)) as api:
        async with api.stream("GET", path) as response:
            assert await anext(response.aiter_bytes()) == b"data: first\n\n"
            assert response.headers["content-type"] == "text/event-stream"
        await asyncio.wait_for(gone.wait(), 10)


async def test_client_that_disconnects_cancels_the_request_to_the_cell() -> None:
    one, two = two_cells()
    begun, gone = asyncio.Event(), asyncio.Event()

    async def score(request: web.Request) -> web.StreamResponse:
        await request.read()
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()
        raise AssertionError

    for cell in (one, two):
        cell.answers["POST /v1/scores"] = cell.answers["POST /get_reward"] = score
    async with a_router_of(one, two) as api:
        for path in ("/v1/scores", "/get_reward"):  # a body that is read, and one that is streamed
            begun.clear()
            gone.clear()
            calling = asyncio.create_task(api.post(path, json={"task": "t"}))
            await asyncio.wait_for(begun.wait(), 10)
            calling.cancel()
            await asyncio.wait_for(gone.wait(), 10)


async def test_body_is_forwarded_while_it_arrives() -> None:
    one, two = two_cells()
    received, path = asyncio.Event(), f"/v1/environments/{uuid7(1)}/archive"

    async def upload(request: web.Request) -> web.StreamResponse:
        assert await request.content.readany() == b"first"
        received.set()
        return web.json_response({"rest": (await request.read()).decode()})

    async def parts() -> Any:
        yield b"first"
        await asyncio.wait_for(received.wait(), 10)
        yield b"second"

    one.answers[f"PUT {path}"] = upload
    async with a_router_of(one, two) as api:
        assert (await api.put(path, content=parts())).json() == {"rest": "second"}


async def test_body_above_the_limit_is_refused_and_blames_no_cell() -> None:
    async def parts() -> Any:
        for _ in range(40):
            yield b"x" * (64 << 10)

    async with a_router_of(*two_cells(), max_body_mib=1) as api:
        for path in (f"/v1/environments/{uuid7(1)}/files/a", f"/v1/actions/{uuid7(1)}/input"):
            refused = await api.put(path, content=parts())
            assert (refused.status_code, refused.json()["code"]) == (413, "too_large")
        assert await is_up(api, 1)


async def test_frozen_cell_delays_no_request_for_another() -> None:
    one, two = two_cells()
    async with a_router_of(one, two) as api:
        two.is_frozen = True
        waiting = [asyncio.create_task(api.get(f"/v1/actions/{uuid7(2)}")) for _ in range(20)]
        at = time.monotonic()
        for _ in range(20):
            assert (await api.get(f"/v1/actions/{uuid7(1)}")).json() == {"served_by": 1}
        assert time.monotonic() - at < 5
        await wait_down(api, 2)
        refused = await api.get(f"/v1/actions/{uuid7(2)}")
        assert (refused.status_code, refused.json()["code"]) == (503, "cell_unavailable")
        assert refused.json()["detail"].startswith("cell 2 does not answer (TimeoutError at the health check)")
        assert (await api.get("/v1/actions", params={"limit": 0})).json() == {"served_by": 1}
        for task in waiting:
            task.cancel()


async def test_address_of_another_cell_gets_no_requests() -> None:
    one, two = two_cells()
    async with a_router_of(one, two) as api:
        two.is_ready = False
        await wait_down(api, 2)
        two.number, two.is_ready = 3, True

        async def names_it() -> bool:
            return (await api.get("/v1/cells")).json()["items"][1]["problem"] == "the system at this address is cell 3"

        await eventually(names_it)
        assert (await api.get(f"/v1/actions/{uuid7(2)}")).status_code == 503
    assert not two.requests


async def test_request_without_response_is_repeated_only_if_that_is_harmless() -> None:
    one, two = two_cells()

    async def break_off(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        await request.read()
        request.transport.abort()
        return web.Response()

    for route in ("POST /endpoints/search/q", "GET /endpoints/search/q"):
        one.answers[route] = two.answers[route] = break_off
    async with a_router_of(one, two) as api:
        posted = await api.post("/endpoints/search/q", json={})
        keyed = await api.post("/endpoints/search/q", json={}, headers={"idempotency-key": "k"})
        read = await api.get("/endpoints/search/q")
    assert [answer.status_code for answer in (posted, keyed, read)] == [503] * 3
    assert [answer.headers.get("x-should-retry") for answer in (posted, keyed, read)] == ["false", None, None]
    assert ["retry-after" in answer.headers for answer in (posted, keyed, read)] == [False, True, True]


async def test_answer_of_a_gateway_without_postgres_names_its_cell() -> None:
    one, two = two_cells()
    path = f"/v1/actions/{uuid7(2)}"
    two.answer(f"GET {path}", PROBLEM, 503)
    async with a_router_of(one, two) as api:
        answer = await api.get(path)
    assert (answer.status_code, answer.json()["detail"]) == (503, "cell 2: the database is not reachable")


@pytest.mark.parametrize("media_type", ["application/json", "application/problem+json"])
async def test_error_of_an_external_api_is_not_changed(media_type: str) -> None:
    cells = two_cells()
    document = {"code": "unavailable", "detail": "their database is not reachable"}

    async def fail(request: web.Request) -> web.StreamResponse:
        return web.json_response(document, status=503, content_type=media_type)

    for cell in cells:
        cell.answers["GET /endpoints/search/q"] = fail
    async with a_router_of(*cells) as api:
        for headers in ({}, {"tangram-cell": "2"}):
            answer = await api.get("/endpoints/search/q", headers=headers)
            assert (answer.status_code, answer.json()) == (503, document)


async def test_error_body_of_another_program_is_not_changed() -> None:
    one, two = two_cells()
    path, document = f"/v1/actions/{uuid7(2)}", {**PROBLEM, "code": "of another program"}
    two.answer(f"GET {path}", document, 502)
    async with a_router_of(one, two) as api:
        assert (await api.get(path)).json() == document


async def test_node_that_joins_at_the_router_is_sent_to_its_cell() -> None:
    cells = two_cells()
    async with a_router_of(*cells) as api:
        del api.headers["authorization"]
        refused = await api.post("/v1/nodes/join", json={"token": "x"})
    assert (refused.status_code, "the address of the gateway of its cell" in refused.json()["detail"]) == (422, True)
    assert not any(cell.requests for cell in cells)


@pytest.mark.parametrize("query", [f"limit={'9' * 5000}", f"cursor={'9' * 5000}"])
@pytest.mark.parametrize("path", ["/v1/admin/queues", "/v1/actions"])
async def test_parameter_with_too_many_digits_is_refused(path: str, query: str) -> None:
    cells = two_cells()
    for cell in cells:
        cell.answer(f"GET {path}", {"code": "validation_failed"}, 422)
    async with a_router_of(*cells) as api:
        assert (await api.get(f"{path}?{query}")).status_code in (400, 422)


async def test_request_without_key_is_not_read_and_goes_to_any_cell() -> None:
    one, two = two_cells()
    async with a_router_of(one, two) as api:
        del api.headers["authorization"]
        batch = {"actions": [{"task": "t", "environment": {"id": str(uuid7(cell))}} for cell in (1, 2)]}
        assert (await api.post("/v1/actions:batch", json=batch)).status_code == 200
    assert [*one.bodies, *two.bodies] == [batch]


async def test_malformed_batch_and_wait_are_explained_by_a_gateway() -> None:
    one, two = two_cells()
    async with a_router_of(one, two) as api:
        for body in (b"{", b"[]", b'{"actions": []}', b'{"ids": ["x"]}', b"[" * 5000, b'{"actions": [NaN, 1]}'):
            for path in ("/v1/actions:batch", "/v1/actions:wait", "/v1/actions", "/v1/admin/keys"):
                one.answer(f"POST {path}", {})
                two.answer(f"POST {path}", {})
                await api.post(path, content=body, headers={"content-type": "application/json"})
        batch = {"actions": [{"task": "t", "environment": {"id": str(uuid7(cell))}} for cell in (1, 2)]}
        await api.post("/v1/actions:batch", content=json.dumps(batch), headers={"content-type": "text/plain"})
        keys = sum(path == "POST /v1/admin/keys" for path in [*one.paths, *two.paths])
    others = len(one.requests) + len(two.requests) - keys
    assert (others, keys) == (6 * 3 + 1, 4 + 2 * 2)


async def test_router_is_ready_and_counts_while_one_cell_answers() -> None:
    one, two = two_cells()
    token = {"authorization": f"Bearer {'s' * 32}"}
    async with a_router_of(one, two, metrics_token_hash=sha256(b"s" * 32).hexdigest()) as api:
        two.is_ready = False
        await wait_down(api, 2)
        assert (await api.get("/readyz")).status_code == 200
        answers = [await api.get(f"/v1/actions/{uuid7(cell)}") for cell in (1, 2)]
        assert [answer.status_code for answer in answers] == [200, 503]
        counted = (await api.get("/metrics", headers=token)).text
        for line in (
            'tangram_cell_up{cell="1"} 1.0',
            'tangram_cell_up{cell="2"} 0.0',
            'tangram_cell_requests_total{cell="1",outcome="answered"} 1.0',
            'tangram_cell_requests_total{cell="2",outcome="refused"} 1.0',
            'tangram_http_requests_total{method="GET",route="by_id:actions",status="503"} 1.0',
        ):
            assert f"{line}\n" in counted
        assert (await api.get("/metrics")).status_code == 401
        one.is_ready = False
        await wait_down(api, 1)
        unready = await api.get("/readyz")
        assert (unready.status_code, "cell 1: the database is not reachable" in unready.json()["detail"]) == (503, True)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"cells": {1: "http://a", 2: "http://a/"}}, "same URL"),
        ({"cells": {1: "a"}}, "must begin with http"),
        ({"cells": {0: "http://a"}}, "greater than or equal to 1"),
        ({"cells": {1: "http://a"}, "cell_weights": {2: 1.0}}, "not one of cells"),
        ({"cells": {1: "http://a"}, "cell_weights": {1: 0.0}}, "weight above 0"),
        ({"cells": {1: "http://a"}, "fallback_cell": 7}, "not one of cells"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], problem: str) -> None:
    from arl_cell_router.settings import CellRouterSettings

    with pytest.raises(ValueError, match=problem):
        CellRouterSettings(port=1, **json.loads(json.dumps(settings)))
