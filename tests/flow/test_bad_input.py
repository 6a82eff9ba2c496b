"""Test that invalid input returns a problem with the wrong field and leaves the system running."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from support.postgres import Databases
from support.system import API_KEY, System, running_system

MIB = 1 << 20
MAX_BODY = 2 * MIB
TRUE: dict[str, Any] = {"task": "t", "argv": ["true"], "demand": {"cpu": 0.1}}
JSON = {"content-type": "application/json"}
OVERRIDES = {"gateway": {"TANGRAM_MAX_BODY_MIB": "2", "TANGRAM_BODY_TIMEOUT_S": "0.3"}}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    async with running_system(owner_url, cores=64, overrides=OVERRIDES) as system:
        async with system.client() as api:
            # Its outcome says that admission knows a node, so that a demand can be impossible.
            await api.post("/v1/actions", json=TRUE, params={"wait": 20})
        yield system
    await databases.drop(owner_url)


@pytest_asyncio.fixture
async def api(system: System) -> AsyncIterator[httpx.AsyncClient]:
    async with system.client() as api:
        yield api


def fields_of(response: httpx.Response, *statuses: int) -> list[str]:
    """Check the properties common to all problems and return the fields that this one names."""
    assert response.status_code in statuses, response.text[:500]
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["status"] == response.status_code
    assert problem["detail"]
    assert len(response.content) < 64 << 10
    assert "Traceback" not in response.text
    return [error["field"] for error in problem["errors"]]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"nice": 1}, "nice"),
    ({"demand": {"gpus": 1}}, "demand.gpus"),
    ({"environment": {"scope": "ephemeral", "image": "x"}}, "environment.image"),
    ({"environment": {"template": "debian"}}, "environment.template"),
    ({"environment": {"scope": "trajectory"}}, "body"),
    ({"demand": {"cpu": 65}}, "demand.cpu"),
    ({"demand": {"cpu": {"min": 65, "max": 70}}}, "demand.cpu"),
    ({"demand": {"cpu": {"min": 2, "max": 1}}}, "demand.cpu.range"),
    ({"demand": {"cpu": -1}}, "demand.cpu.cores"),
    ({"demand": {"cpu": 10**30}}, "demand.cpu.cores"),
    ({"demand": {"cpu": True, "pids": 0}}, "demand.pids"),
    ({"demand": {"memory_mib": 2**63}}, "demand.memory_mib"),
    ({"demand": {"memory_mib": 8.5}}, "demand.memory_mib"),
    ({"demand": []}, "demand"),
    ({"timeout_s": -1}, "timeout_s"),
    ({"timeout_s": 1e308}, "timeout_s"),
    ({"timeout_s": 1e-46}, "timeout_s"),
    ({"deadline_s": 0}, "deadline_s"),
    ({"step": 2**31}, "step"),
    ({"step": 10**400}, "step"),
    ({"retries": -1}, "retries"),
    ({"priority": 11}, "priority"),
    ({"priority": "high"}, "priority"),
    ({"task": ""}, "task"),
    ({"task": "a b"}, "task"),
    ({"task": "t\n"}, "task"),
    ({"task": "x" * 129}, "task"),
    ({"task": None}, "task"),
    ({"argv": []}, "argv"),
    ({"argv": [""]}, "body"),
    ({"argv": "true"}, "argv"),
    ({"argv": ["a\x00b"]}, "argv.0"),
    ({"argv": ["\ud800"]}, "argv.0"),
    ({"argv": ["x"] * 4097}, "argv"),
    ({"argv": ["true", "x" * (128 << 10)]}, "argv.1"),
    ({"argv": ["true", "ü" * (64 << 10)]}, "argv.1"),
    ({"env": {"A": "x" * (128 << 10)}}, "env.A"),
    ({"source": "print(1)"}, "body"),
    ({"stdin": "a\x00"}, "stdin"),
    ({"env": {"A": "\x00"}}, "env.A"),
    ({"env": {"A=B": "1"}}, "env.A=B.[key]"),
    ({"env": {f"V{number}": "" for number in range(257)}}, "env"),
    ({"cwd": "/etc"}, "cwd"),
    ({"files": {"a": "no base64!"}}, "files.a"),
    ({"files": {"/etc/passwd": ""}}, "files./etc/passwd.[key]"),
    ({"fetch": ["../x"]}, "fetch.0"),
    ({"labels": {f"l{number}": "x" for number in range(10_000)}}, "labels"),
    ({"labels": {"a": "x" * 257}}, "labels.a"),
    ({"labels": {"a": "\x00"}}, "labels.a"),
    ({"elasticity": {"model": "magic"}}, "elasticity"),
    ({"elasticity": {"model": "\ud800"}}, "elasticity"),
    ({"elasticity": {"model": "amdahl", "parallel_fraction": 1.5}}, "elasticity.amdahl.parallel_fraction"),
    ({"elasticity": {"model": "table", "seconds": {"many": 1}}}, "elasticity.table"),
    ({"elasticity": {"model": "table", "seconds": {"1": 1e300}}}, "elasticity.table.seconds.1"),
    ({"elasticity": {"model": "table", "seconds": {"1": 1e-300}}}, "elasticity.table.seconds.1"),
    ({"require": ["gpu"]}, "require.0"),
    ({"\ud800": 1}, "body"),
]
IDS = [f"{number}-{field}" for number, (_, field) in enumerate(WRONG)]


def as_json(value: Any) -> bytes:
    """Encode the value as JSON with lone surrogates as escapes."""
    return json.dumps(value).encode()


class TestSingleAction:
    @pytest.mark.parametrize(("changed", "field"), WRONG, ids=IDS)
    async def test_invalid_action_is_refused_with_its_field(
        self, api: httpx.AsyncClient, changed: dict[str, Any], field: str
    ) -> None:
        response = await api.post("/v1/actions", content=as_json(TRUE | changed), headers=JSON)
        assert field in fields_of(response, 422)

    async def test_long_field_name_is_shortened_in_the_problem(self, api: httpx.AsyncClient) -> None:
        (field,) = fields_of(await api.post("/v1/actions", json=TRUE | {"x" * MIB: 1}), 422)
        assert len(field) < 1000


class TestBatch:
    @pytest.mark.parametrize(("changed", "field"), WRONG, ids=IDS)
    async def test_only_the_invalid_item_of_a_batch_is_refused(
        self, api: httpx.AsyncClient, changed: dict[str, Any], field: str
    ) -> None:
        content = as_json({"actions": [TRUE, TRUE | changed, TRUE]})
        response = await api.post("/v1/actions:batch", content=content, headers=JSON)
        assert response.status_code == 202, response.text[:500]
        items = response.json()["items"]
        assert [sorted(item) for item in items] == [["id"], ["problem"], ["id"]]
        named = [error["field"] for error in items[1]["problem"]["errors"]]
        assert ("actions.1" if field == "body" else f"actions.1.{field}") in named

    @pytest.mark.parametrize("item", [None, 7, "true", [], {}])
    async def test_batch_item_that_is_no_action_is_refused(self, api: httpx.AsyncClient, item: Any) -> None:
        items = (await api.post("/v1/actions:batch", json={"actions": [item, TRUE]})).json()["items"]
        assert [sorted(each) for each in items] == [["problem"], ["id"]]
        assert items[0]["problem"]["status"] == 422
        assert all(error["field"].startswith("actions.0") for error in items[0]["problem"]["errors"])

    async def test_valid_items_keep_their_ids_when_a_corrected_batch_repeats(self, api: httpx.AsyncClient) -> None:
        """A client that corrects one item and resends the batch gets the same ids for the other items."""
        headers = {"idempotency-key": "mended"}
        bad, good = {"actions": [TRUE | {"nice": 1}, TRUE]}, {"actions": [TRUE, TRUE]}
        first, second = [
            (await api.post("/v1/actions:batch", json=body, headers=headers)).json()["items"] for body in (bad, good)
        ]
        assert "problem" in first[0]
        assert "id" in second[0]
        assert first[1] == second[1]

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({}, "actions"),
            ({"actions": []}, "actions"),
            ({"actions": {}}, "actions"),
            ({"actions": [TRUE] * 1001}, "actions"),
            ({"actions": [TRUE], "more": 1}, "more"),
            ([TRUE], "body"),
        ],
    )
    async def test_invalid_batch_is_refused_with_its_field(self, api: httpx.AsyncClient, body: Any, field: str) -> None:
        assert field in fields_of(await api.post("/v1/actions:batch", json=body), 422)

    async def test_openapi_document_describes_a_batch_item(self, api: httpx.AsyncClient) -> None:
        schema = (await api.get("/openapi.json")).json()["components"]["schemas"]["ActionBatchRequest"]
        assert schema["properties"]["actions"]["items"] == {"$ref": "#/components/schemas/SubmitActionRequest"}


async def answered(system: System, status: str) -> float:
    """Return the number of submissions with this status from the gateway's metrics."""
    async with system.client() as client:
        lines = (await client.get("/metrics")).text.splitlines()
    line = f'tangram_http_requests_total{{method="POST",route="/v1/actions",status="{status}"}} '
    return next((float(each.removeprefix(line)) for each in lines if each.startswith(line)), 0.0)


BODIES: list[tuple[str, bytes, dict[str, str]]] = [
    ("empty", b"", JSON),
    ("cut off", b'{"task": "t", ', JSON),
    ("two values", b"{} {}", JSON),
    ("a list", b"[]", JSON),
    ("null", b"null", JSON),
    ("a bare word", b"true", JSON),
    ("not UTF-8", b'{"task": "\xff\xfe"}', JSON),
    ("UTF-16", json.dumps({"nice": 1}).encode("utf-16"), JSON),
    ("NUL bytes", b"\x00" * 100, JSON),
    ("nested too deep", b"[" * 100_000, JSON),
    ("deep and closed", b'{"task": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", JSON),
    ("a number without end", b'{"step": ' + b"9" * 10_000 + b"}", JSON),
    ("NaN", b'{"task": "t", "argv": ["true"], "timeout_s": NaN}', JSON),
    ("Infinity", b'{"task": "t", "argv": ["true"], "timeout_s": 1e999}', JSON),
    ("plain text", as_json(TRUE), {"content-type": "text/plain"}),
    ("a form", b"task=t&argv=true", {"content-type": "application/x-www-form-urlencoded"}),
    ("no content type", as_json(TRUE), {}),
]


class TestBody:
    @pytest.mark.parametrize("path", ["/v1/actions", "/v1/actions:batch", "/v1/actions:wait", "/v1/admin/keys"])
    @pytest.mark.parametrize(("what", "content", "headers"), BODIES, ids=[each[0] for each in BODIES])
    async def test_body_that_is_no_json_object_is_refused(
        self, api: httpx.AsyncClient, path: str, what: str, content: bytes, headers: dict[str, str]
    ) -> None:
        assert fields_of(await api.post(path, content=content, headers=headers), 400, 415, 422), what

    @pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "application", ""])
    async def test_body_of_another_media_type_is_refused(self, api: httpx.AsyncClient, media_type: str) -> None:
        headers = {"content-type": media_type} if media_type else {}
        response = await api.post("/v1/actions", content=as_json(TRUE), headers=headers)
        assert fields_of(response, 415) == ["header.Content-Type"]

    async def test_json_media_type_variants_are_accepted(self, api: httpx.AsyncClient) -> None:
        for media_type in ("application/json; charset=utf-8", "Application/JSON", "application/merge-patch+json"):
            response = await api.post("/v1/actions", content=as_json(TRUE), headers={"content-type": media_type})
            assert response.status_code in (200, 202), "a quick one has settled by the answer"

    async def test_wrong_method_is_refused_with_the_allow_header(self, api: httpx.AsyncClient) -> None:
        response = await api.put("/v1/actions", json=TRUE)
        fields_of(response, 405)
        assert response.headers["allow"] == "GET, POST"

    async def test_body_with_too_large_content_length_is_refused(self, api: httpx.AsyncClient) -> None:
        response = await api.post("/v1/actions", content=b" " * (MAX_BODY + 1), headers=JSON)
        assert fields_of(response, 413) == ["body"]

    async def test_streamed_body_above_the_limit_is_refused(self, api: httpx.AsyncClient) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(MAX_BODY // 65536 + 1):
                yield b" " * 65536

        assert fields_of(await api.post("/v1/actions", content=chunks(), headers=JSON), 413) == ["body"]

    @pytest.mark.parametrize("sent", [b"", b'{"task": "t", '])
    async def test_body_that_never_ends_times_out(self, system: System, sent: bytes) -> None:
        head = (
            f"POST /v1/actions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {API_KEY}\r\n"
            "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", system.ports["gateway"])
        writer.write(head.encode() + sent)
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        await writer.wait_closed()
        top, _, body = answer.partition(b"\r\n\r\n")
        assert top.startswith(b"HTTP/1.1 408 ")
        assert b"application/problem+json" in top
        assert json.loads(body)["errors"][0]["field"] == "body"

    @pytest.mark.parametrize("media_type", ["application/json", "application/json; charset=utf-8"])
    async def test_client_disconnect_during_a_body_is_counted_as_499(self, system: System, media_type: str) -> None:
        head = (
            f"POST /v1/actions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {API_KEY}\r\n"
            f"Content-Type: {media_type}\r\nContent-Length: 1000\r\n\r\n"
        )
        refused = await answered(system, "499")
        _, writer = await asyncio.open_connection("127.0.0.1", system.ports["gateway"])
        writer.write(head.encode() + b'{"task": ')
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        async with asyncio.timeout(10):
            while await answered(system, "499") == refused:
                await asyncio.sleep(0.02)
        assert await answered(system, "500") == 0

    @pytest.mark.parametrize(("wait", "field"), [("-1", "query.wait"), ("1e9", "query.wait"), ("many", "query.wait")])
    async def test_submitted_action_with_wrong_wait_names_the_field(
        self, api: httpx.AsyncClient, wait: str, field: str
    ) -> None:
        assert fields_of(await api.post("/v1/actions", json=TRUE, params={"wait": wait}), 422) == [field]

    async def test_long_wait_is_not_limited_by_the_body_timeout(self, api: httpx.AsyncClient) -> None:
        """A wait may take longer than the body timeout."""
        response = await api.post("/v1/actions", json=TRUE | {"argv": ["sleep", "300"]}, params={"wait": 1})
        assert response.status_code == 202
        await api.delete(response.headers["location"])


class TestParameters:
    @pytest.mark.parametrize(
        ("url", "field"),
        [
            ("/v1/actions/%ff%00", "path.id"),
            ("/v1/actions?limit=0", "query.limit"),
            ("/v1/admin/capacity?cores=many", "query.cores"),
            ("/v1/actions?limit=99999999999999999999", "query.limit"),
            ("/v1/actions?task=%00", "query.task"),
            ("/v1/actions?state=lost", "query.state"),
            ("/v1/actions?cursor=%00", "query.cursor"),
            ("/v1/actions/00000000-0000-0000-0000-000000000001?wait=1e9", "query.wait"),
            ("/v1/actions/00000000-0000-0000-0000-000000000001?wait=nan", "query.wait"),
            ("/v1/admin/keys?cursor=-1", "query.cursor"),
        ],
    )
    async def test_invalid_parameter_is_refused_with_its_name(
        self, api: httpx.AsyncClient, url: str, field: str
    ) -> None:
        assert field in fields_of(await api.get(url), 400, 422)

    async def test_invalid_trajectory_name_is_refused(self, api: httpx.AsyncClient) -> None:
        response = await api.request("DELETE", "/v1/trajectories/%00?task=t")
        assert "path.trajectory" in fields_of(response, 422)
