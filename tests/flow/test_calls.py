"""Test calls of an external API through the public API and all services."""

import asyncio
import json
import re
from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio
from aiohttp import web

from arl_tangram import ActionFailed, AsyncTangram, EndpointNotFound, ValidationFailed, call_action
from support.calling import CALL, SECRET, STRANGER, Site, calling
from support.conditions import eventually
from support.endpoint import Asked
from support.postgres import Databases
from support.system import API_KEY


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(databases: Databases) -> AsyncIterator[Site]:
    async with calling(databases) as site:
        yield site


@pytest.fixture(autouse=True)
def _anew(site: Site) -> None:
    site.begin()


async def test_call_carries_the_endpoint_key_and_returns_its_response(site: Site) -> None:
    request = {"path": "find%20it", "query": {"q": ["a b", "c"]}, "json_body": {"deep": [1]}}
    action = await site.call(request, labels={"a": "b"})
    assert (action["outcome"], action["node"][-4:]) == ("ok", "-api")
    response = action["result"]["response"]
    assert (response["status"], response["attempts"], response["body"]["text"]) == (200, 1, '{"status": 200}')
    assert response["headers"]["content-type"].startswith("application/json")
    [asked] = site.there.asked
    assert (asked.method, asked.url) == ("POST", "/v1/find%20it?q=a+b&q=c&cx=engine-7")
    assert (asked.headers["Authorization"], asked.headers["Content-Type"]) == (f"Bearer {SECRET}", "application/json")
    assert json.loads(asked.body) == {"deep": [1]}


async def test_client_error_response_is_a_user_error(site: Site) -> None:
    site.there.answers(404)
    action = await site.call()
    assert (action["outcome"], action["result"]["response"]["status"], len(site.there.asked)) == ("user_error", 404, 1)


@pytest.mark.parametrize("status", [429, 500, 503, 529])
async def test_retryable_response_is_sent_again(site: Site, status: int) -> None:
    site.there.answers(status)
    action = await site.call()
    assert (action["outcome"], action["result"]["response"]["attempts"]) == ("ok", 2)


async def test_failed_post_is_retried_only_if_idempotent(site: Site) -> None:
    site.there.answers(500)
    action = await site.call({"body": "x"})
    assert (action["outcome"], action["reason"], len(site.there.asked)) == ("infra_error", "endpoint_unavailable", 1)
    assert action["result"]["response"]["status"] == 500
    site.there.answers(500)
    assert (await site.call({"body": "x"}, idempotent=True))["outcome"] == "ok"


async def test_refused_endpoint_key_is_an_infrastructure_error(site: Site) -> None:
    site.there.answers(401)
    action = await site.call()
    assert (action["outcome"], action["reason"]) == ("infra_error", "endpoint_refused")


async def test_unreachable_endpoint_is_an_infrastructure_error_without_response(site: Site) -> None:
    action = await site.call(endpoint="away", timeout_s=1.5)
    assert (action["outcome"], action["reason"]) == ("infra_error", "endpoint_unreachable")
    assert re.search("after [2-9] attempts", action["message"])
    assert "response" not in action["result"]


async def test_call_past_its_timeout_closes_the_connection(site: Site) -> None:
    async def never(_: Asked) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    site.there.answer = never
    action = await site.call(timeout_s=0.2)
    assert (action["outcome"], action["reason"]) == ("infra_error", "endpoint_timeout")
    await eventually(lambda: site.there.in_flight == 0)


async def test_cancelled_call_closes_the_connection(site: Site) -> None:
    async def never(_: Asked) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    site.there.answer = never
    action = (await site.api.post("/v1/actions", json={**CALL, "request": {"method": "GET"}})).json()
    await eventually(lambda: site.there.in_flight == 1)
    await site.api.delete(f"/v1/actions/{action['id']}")
    settled = (await site.api.get(f"/v1/actions/{action['id']}", params={"wait": 30})).json()
    assert settled["outcome"] == "cancelled"
    await eventually(lambda: site.there.in_flight == 0)


async def test_calls_in_flight_never_exceed_the_endpoint_concurrency(site: Site) -> None:
    async def soon(_: Asked) -> web.StreamResponse:
        await asyncio.sleep(0.02)
        return web.Response()

    site.there.answer = soon
    actions = [{**CALL, "endpoint": "many", "request": {"method": "GET"}} for _ in range(60)]
    items = (await site.api.post("/v1/actions:batch", json={"actions": actions})).json()["items"]
    waited = await site.api.post("/v1/actions:wait", json={"ids": [each["id"] for each in items]})
    assert [each["outcome"] for each in waited.json()["settled"]] == ["ok"] * 60
    assert site.there.most == 8


async def test_calls_of_a_task_never_exceed_its_endpoint_quota(site: Site) -> None:
    async def soon(_: Asked) -> web.StreamResponse:
        await asyncio.sleep(0.01)
        return web.Response()

    site.there.answer = soon
    async with AsyncTangram(site.system.url, API_KEY) as tangram:
        await tangram.call("many", task="modest")
        queue = await tangram.set_queue_quota("modest", endpoints={"many": 2})
        assert queue.quota is not None
        assert queue.quota.endpoints == {"many": 2}
        site.there.most = 0
        ids = await tangram.submit_many([call_action("many", task="modest") for _ in range(20)])
        assert {each.outcome for each in await tangram.wait(ids, timeout_s=40)} == {"ok"}
    assert site.there.most == 2


async def test_calls_never_exceed_the_endpoint_rate(site: Site) -> None:
    site.there.answers(*[429] * 3)
    actions = [{**CALL, "endpoint": "slow", "request": {"method": "GET"}} for _ in range(30)]
    items = (await site.api.post("/v1/actions:batch", json={"actions": actions})).json()["items"]
    waited = await site.api.post("/v1/actions:wait", json={"ids": [each["id"] for each in items]})
    assert [each["outcome"] for each in waited.json()["settled"]] == ["ok"] * 30
    moments = [each.at for each in site.there.asked]
    assert len(moments) == 33
    for first, begun in enumerate(moments):
        for last in range(first, len(moments)):
            # A request is noted a little after it was sent, and not always as long after.
            assert last - first + 1 <= 5 + 20 * (moments[last] - begun + 0.1)


async def test_endpoint_secrets_are_absent_from_rows_logs_and_responses(site: Site) -> None:
    async def echo(asked: Asked) -> web.StreamResponse:
        said = f"{asked.headers['Authorization']} {asked.url}"
        return web.Response(text=said, status=404, headers={"X-Said": said})

    site.there.answer = echo
    action = await site.call()
    assert action["result"]["response"]["body"]["text"] == "Bearer [hidden] /v1?cx=[hidden]"
    listed = (await site.api.get("/v1/endpoints")).json()
    shown = json.dumps([action, listed]) + site.system.log("api") + site.system.log("gateway")
    connection = await asyncpg.connect(site.system.owner_url)
    try:
        for table in ("action_specs", "action_results", "nodes", "actions"):
            shown += "".join(row[0] for row in await connection.fetch(f"select t::text from {table} as t"))
        stdout = await connection.fetch("select stdout from action_results")
    finally:
        await connection.close()
    assert SECRET not in shown + "".join(row[0].decode() for row in stdout)
    assert "engine-7" not in shown + "".join(row[0].decode() for row in stdout)


async def test_response_above_the_size_limit_is_truncated(site: Site) -> None:
    async def endless(asked: Asked) -> web.StreamResponse:
        return web.Response(body=b"x" * (3 << 20))

    site.there.answer = endless
    body = (await site.call())["result"]["response"]["body"]
    assert (len(body["text"]), body["total_bytes"], body["truncated"]) == (1 << 20, 3 << 20, True)


async def test_redirect_is_returned_and_not_followed(site: Site) -> None:
    async def away(asked: Asked) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": "http://169.254.169.254/"})

    site.there.answer = away
    response = (await site.call())["result"]["response"]
    assert (response["status"], response["headers"]["location"], len(site.there.asked)) == (
        302, "http://169.254.169.254/", 1,
    )  # fmt: skip


async def test_endpoints_are_listed_with_their_limits(site: Site) -> None:
    await site.call()
    listed = {each["name"]: each for each in (await site.api.get("/v1/endpoints")).json()["items"]}
    assert sorted(listed) == ["away", "many", "search", "slow"]
    assert listed["search"]["methods"] == ["GET", "HEAD", "POST"]
    [node] = listed["slow"]["nodes"]
    assert (node["concurrency"], node["per_s"], node["burst"], node["available"]) == (64, 20.0, 5, True)
    one = await site.api.get("/v1/endpoints/nothing")
    assert (one.status_code, one.json()["code"]) == (404, "not_found")


async def test_endpoint_url_and_health_details_are_visible_only_to_administrators(site: Site) -> None:
    stranger = {"authorization": f"Bearer {STRANGER}"}
    site.there.answers(401)
    await site.call()

    async def is_said() -> bool:
        listed = (await site.api.get("/v1/endpoints/search")).json()
        assert listed["url"].startswith(site.there.url)
        return listed["nodes"][0]["health"].startswith("endpoint_refused: the endpoint returned status 401")

    await eventually(is_said)
    seen = (await site.api.get("/v1/endpoints/search", headers=stranger)).json()
    assert "url" not in seen
    assert seen["nodes"][0]["health"] == "endpoint_refused"
    assert site.there.url not in (await site.api.get("/v1/endpoints", headers=stranger)).text


async def test_trace_shows_the_endpoint_wait_and_each_request(site: Site) -> None:
    site.there.answers(503)
    action = await site.call()
    trace = (await site.api.get(f"/v1/actions/{action['id']}/trace")).json()
    names = [each["name"] for each in trace["spans"]]
    assert names.count("request") == 2
    assert "endpoint wait" in names


async def test_sdk_call_returns_responses_and_raises_typed_errors(site: Site) -> None:
    async with AsyncTangram(site.system.url, API_KEY) as tangram:
        response = await tangram.call("search", "find", query={"q": "x"}, task="search")
        assert (response.status, json.loads(response.body.text)) == (200, {"status": 200})
        site.there.answers(400)
        assert (await tangram.call("search", json_body={"q": 1})).status == 400
        site.there.answers(403)
        with pytest.raises(ActionFailed, match="403; check the endpoint's key and its budget"):
            await tangram.call("search")
        with pytest.raises(
            EndpointNotFound, match=r"endpoint 'nothing' does not exist\. Available: away, many, search, slow"
        ):
            await tangram.call("nothing")
        with pytest.raises(ValidationFailed, match=r"search does not allow DELETE\. Allowed: GET, HEAD, POST"):
            await tangram.call("search", method="DELETE")
        assert [each.name for each in await tangram.endpoints()] == ["away", "many", "search", "slow"]


@pytest.mark.slow
async def test_endpoint_that_no_broker_ever_had_is_refused(site: Site) -> None:
    site.system.kill("api")
    connection = await asyncpg.connect(site.system.owner_url)
    try:  # as if no broker had ever been there
        await connection.execute("delete from node_beats where node_id in (select id from nodes where kind = 'api')")
    finally:
        await connection.close()
    async with AsyncTangram(site.system.url, API_KEY) as tangram:
        await eventually(lambda: _is_refused(tangram))
        await site.system.start("api")
        await eventually(lambda: _is_called(tangram))


async def _is_refused(tangram: AsyncTangram) -> bool:
    """Return True once admission has noticed that no broker has the endpoint."""
    try:
        action = await tangram.submit(call_action("search"))
    except EndpointNotFound as error:
        return "Available: none" in str(error)
    await tangram.cancel(action.id)
    return False


async def _is_called(tangram: AsyncTangram) -> bool:
    try:
        return (await tangram.run(call_action("search", method="GET"))).outcome == "ok"
    except EndpointNotFound:
        return False


async def test_calls_of_a_killed_broker_are_completed_by_the_next(site: Site) -> None:
    async def never(_: Asked) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    site.there.answer = never
    async with AsyncTangram(site.system.url, API_KEY) as tangram:
        ids = await tangram.submit_many([call_action("many", retries=1) for _ in range(12)])
        await eventually(lambda: site.there.in_flight == 8)
        site.system.kill("api")
        site.there.answers()
        await site.system.start("api")
        assert {each.outcome for each in await tangram.wait(ids, timeout_s=40)} == {"ok"}
