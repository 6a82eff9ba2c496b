"""Test existing API clients that only change their base URL and key."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from aiohttp import web

from support.calling import SECRET, Site, calling
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


async def test_existing_client_needs_only_another_base_url_and_key(site: Site) -> None:
    async def chat(asked: Asked) -> web.StreamResponse:
        said = json.loads(asked.body)
        return web.json_response({"said": said["messages"], "tool": asked.headers.get("X-Tool")}, status=200)

    site.there.answer = chat
    address = f"{site.system.url}/t/deep-search/endpoints/many/v1/chat%2Fx"
    headers = {"x-api-key": API_KEY, "tangram-trajectory": "r7", "x-tool": "t", "cookie": "a=b"}
    async with httpx.AsyncClient(headers=headers) as client:
        answer = await client.post(address, json={"messages": ["é"]}, params={"task": "theirs", "stream": "1"})
    assert (answer.status_code, answer.json()) == (200, {"said": ["é"], "tool": "t"})
    [asked] = site.there.asked
    assert asked.url == "/v1/chat%2Fx?task=theirs&stream=1"
    assert not [name for name in ("Cookie", "tangram-trajectory", "x-api-key") if name in asked.headers]
    action = (await site.api.get(f"/v1/actions/{answer.headers['tangram-action']}")).json()
    assert (action["task"], action["trajectory"], action["kind"]) == ("deep-search", "r7", "call")


async def test_proxy_returns_the_endpoint_response_with_its_outcome(site: Site) -> None:
    site.there.answers(*[429] * 9, x_should_retry="false")
    answer = await site.api.get("/endpoints/search/x")
    assert (answer.status_code, answer.headers["tangram-outcome"]) == (429, "infra_error; endpoint_throttled")
    site.there.answers(404)
    answer = await site.api.get("/endpoints/many/x")
    assert (answer.status_code, answer.json()) == (404, {"status": 404})
    answer = await site.api.get("/endpoints/away/x", headers={"tangram-timeout_s": "1"})
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert "endpoint_unreachable" in answer.json()["detail"]
    for path, content, code in (
        ("nothing/x", b"", "endpoint_not_found"),
        ("many/a/%2e%2e/b", b"", "validation_failed"),
    ):
        answer = await site.api.post(f"/endpoints/{path}", content=content)
        assert (answer.status_code, answer.json()["code"]) == (422, code)


async def test_client_disconnect_cancels_the_proxied_call(site: Site) -> None:
    async def never(_: Asked) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    site.there.answer = never
    asking = asyncio.create_task(site.api.get("/endpoints/many/x", headers={"tangram-task": "hung-up"}))
    await eventually(lambda: site.there.in_flight == 1)
    asking.cancel()
    await eventually(lambda: site.there.in_flight == 0)

    async def is_cancelled() -> bool:
        listed = (await site.api.get("/v1/actions", params={"task": "hung-up"})).json()["items"]
        return [each.get("outcome") for each in listed] == ["cancelled"]

    await eventually(is_cancelled)


async def test_proxy_forwards_the_request_unchanged(site: Site) -> None:
    async def echo(asked: Asked) -> web.StreamResponse:
        return web.Response(body=asked.body, headers={"X-Method": asked.method, "Request-Id": "r1"})

    site.there.answer = echo
    query = "flag&a=%20b&c=+d&api_key=tk&a"
    many = {f"x-{number}": "v" for number in range(80)} | {"x-latin": "caf\u00e9".encode("latin-1")}
    answer = await site.api.request("GET", f"/endpoints/many/_search?{query}", content=b"\xff\x00", headers=many)
    assert (answer.status_code, answer.content) == (200, b"\xff\x00")
    assert answer.headers["request-id"] == "r1"
    assert site.there.asked[-1].url == "/_search?flag&a=%20b&c=+d&a"
    head = await site.api.head("/endpoints/many/x")
    assert (head.headers["x-method"], "content-length" in head.headers) == ("HEAD", False)
    assert (await site.api.get("/endpoints/many")).headers["x-method"] == "GET"
    assert site.there.asked[-1].url == "/"


async def test_proxy_removes_redirects_and_forged_headers(site: Site) -> None:
    async def hostile(_: Asked) -> web.StreamResponse:
        headers = {"Location": "http://evil.example/", "Refresh": "0; url=http://evil.example/"}
        ours = {"tangram-outcome": "infra_error; x", "tangram-action": "other", "clear-site-data": "*"}
        return web.Response(status=201, headers={**headers, **ours, "X-Title": "\u65e5"})

    site.there.answer = hostile
    answer = await site.api.get("/endpoints/many/x")
    assert answer.status_code == 201
    assert not {"location", "refresh", "clear-site-data", "tangram-outcome"} & answer.headers.keys()
    assert answer.headers["tangram-action"] != "other"
    assert answer.headers["x-title"] == "%E6%97%A5"

    async def away(_: Asked) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": "http://evil.example/"})

    site.there.answer = away
    answer = await site.api.post("/endpoints/many/x", follow_redirects=True)
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert "the endpoint redirects with status 307" in answer.json()["detail"]
    assert answer.headers["x-should-retry"] == "false"


async def test_timed_out_retry_does_not_return_an_earlier_response(site: Site) -> None:
    async def late(_: Asked) -> web.StreamResponse:
        if len(site.there.asked) == 1:
            return web.Response(status=429, headers={"Retry-After": "0.01"})
        await asyncio.Event().wait()
        raise AssertionError

    site.there.answer = late
    answer = await site.api.post("/endpoints/search/x", content=b"pay", headers={"tangram-timeout_s": "1.5"})
    assert (answer.status_code, answer.headers["x-should-retry"], len(site.there.asked)) == (504, "false", 2)


async def test_possibly_executed_request_is_not_marked_for_retry(site: Site) -> None:
    async def hangs_up(asked: Asked) -> web.StreamResponse:
        raise asyncio.CancelledError

    site.there.answer = hangs_up
    answer = await site.api.post("/endpoints/many/x", content=b"pay")
    assert (answer.status_code, answer.headers["x-should-retry"]) == (503, "false")
    assert "retry-after" not in answer.headers
    # Retries go on until the limit. It must not end the first attempt, which may have sent something.
    answer = await site.api.post("/endpoints/away/x", content=b"pay", headers={"tangram-timeout_s": "4"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "x-should-retry" not in answer.headers


async def test_error_of_the_gateway_has_an_openai_error_object(site: Site) -> None:
    cases = [
        ("/endpoints/nothing/x", {}, 422, "endpoint_not_found"),
        ("/endpoints/search/x", {"tangram-timeout_s": "-1"}, 422, "validation_failed"),
        ("/endpoints/search/x", {"authorization": "Bearer no"}, 401, "unauthenticated"),
    ]
    for path, headers, status, code in cases:
        answer = await site.api.post(path, content=b"{}", headers=headers)
        problem = answer.json()
        assert (answer.status_code, problem["code"], problem["error"]["code"]) == (status, code, code)
        assert problem["error"]["message"] == problem["detail"]


async def test_proxy_forwards_no_method_override_and_no_gateway_key(site: Site) -> None:
    headers = {"x-http-method-override": "DELETE", "x-goog-user": API_KEY, "x-kept": "1"}
    await site.api.post(f"/endpoints/search/x?a=1&token={API_KEY}", content=b"{}", headers=headers)
    sent = site.there.asked[-1]
    assert sent.url.endswith("x?a=1") or API_KEY not in sent.url
    assert API_KEY not in str(dict(sent.headers))
    assert {"x-http-method-override", "x-goog-user"}.isdisjoint(map(str.lower, sent.headers))
    assert sent.headers["x-kept"] == "1"


async def test_range_is_refused_on_an_endpoint_with_secrets(site: Site) -> None:
    answer = await site.api.get("/endpoints/search/x", headers={"range": "bytes=0-2"})
    assert "Range" in answer.json()["detail"]
    assert not site.there.asked


@pytest.mark.slow
async def test_call_without_a_live_broker_returns_504_at_its_deadline(site: Site) -> None:
    headers = {"tangram-deadline_s": "0.5"}
    site.system.kill("api")
    try:
        answer = await site.api.get("/endpoints/many/x", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (504, "gateway_timeout")
    finally:
        await site.system.start("api")


async def chat(asked: Asked) -> web.StreamResponse:
    """Answer as a model provider does."""
    wanted = json.loads(asked.body)
    if wanted["model"] == "unknown":
        return web.json_response({"error": {"message": "no such model", "type": "invalid"}}, status=404)
    if wanted["model"] == "lost":
        raise asyncio.CancelledError
    whole = {"id": "c", "created": 1, "model": "m"}
    if not wanted.get("stream"):
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "found"}}
        return web.json_response({**whole, "object": "chat.completion", "choices": [choice]})
    parts = [{"index": 0, "finish_reason": None, "delta": {"content": each}} for each in ("fo", "und")]
    chunks = [json.dumps({**whole, "object": "chat.completion.chunk", "choices": [part]}) for part in parts]
    text = "".join(f"data: {chunk}\n\n" for chunk in [*chunks, "[DONE]"])
    return web.Response(text=text, content_type="text/event-stream")


@pytest.mark.slow
async def test_official_openai_client_chats_streams_and_reads_errors(site: Site, openai: Path) -> None:
    """The client does not retry a request that may have been executed, despite its own retry rule."""
    site.there.answer = chat
    address = f"{site.system.url}/t/deep-search/endpoints/search"
    script = Path(__file__).parents[1] / "contract" / "clients" / "openai_through.py"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(script), str(openai), address, API_KEY), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    expected = {"answer": "found", "streamed": "found", "lost": 503}
    found = json.loads(said)
    assert "no such model" in found.pop("refused")
    assert found == expected
    assert {each.headers["Authorization"] for each in site.there.asked} == {f"Bearer {SECRET}"}
    assert len(site.there.asked) == 4
