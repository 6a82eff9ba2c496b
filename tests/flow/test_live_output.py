"""Test live log streams and stdin of running actions. No test sleeps: each side waits for the other."""

import asyncio
import signal
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
import pytest_asyncio

from arl_store.migrate import ensure_api_key
from arl_tangram import AsyncTangram, NotFound, OutputData, OutputEnd, OutputEvent, Tangram
from support.events import following
from support.postgres import Databases
from support.system import API_KEY, System, running_system

STRANGER = "tk_" + "s" * 32
MIB = 1 << 20
SMALL = {"task": "t", "demand": {"cpu": 0.1, "memory_mib": 64, "disk_mib": 8}}
ECHO = "echo ready; while read line; do echo got $line; echo err $line >&2; done; echo over"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    await ensure_api_key(owner_url, "strangers", STRANGER)
    overrides = {"gateway": {"TANGRAM_MAX_LOG_STREAMS": "4"}}
    async with running_system(owner_url, driver="namespaces", cores=1, overrides=overrides) as system:
        yield system
    await databases.drop(owner_url)


@pytest_asyncio.fixture
async def api(system: System) -> AsyncIterator[httpx.AsyncClient]:
    async with system.client() as api:
        yield api


async def submitted(api: httpx.AsyncClient, script: str, **changed: Any) -> str:
    answer = await api.post("/v1/actions", json=SMALL | {"argv": ["sh", "-c", script]} | changed)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


async def send(api: httpx.AsyncClient, id: str, **body: Any) -> httpx.Response:
    return await api.post(f"/v1/actions/{id}/input", json=body)


async def settled(api: httpx.AsyncClient, id: str) -> dict[str, Any]:
    answer = await api.get(f"/v1/actions/{id}", params={"wait": 30})
    assert answer.json()["state"] == "settled"
    return dict(answer.json())


class TestOutput:
    async def test_output_is_streamed_before_the_action_ends(self, api: httpx.AsyncClient) -> None:
        id = await submitted(api, ECHO, stdin_open=True)
        async with following(api, id) as stream:
            await stream.until("stdout", b"ready\n")
            assert (await send(api, id, text="one\n")).json() == {"offset": 4}
            await stream.until("stdout", b"got one\n")
            assert (await send(api, id, text="two\n", end=True)).status_code == 200
            end = await stream.to_the_end()
        assert stream.content("stdout") == b"ready\ngot one\ngot two\nover\n"
        assert stream.content("stderr") == b"err one\nerr two\n"
        assert (end.data["state"], end.data["outcome"], end.data["exit_code"]) == ("settled", "ok", 0)
        assert (end.data["stdout_bytes"], end.data["stderr_bytes"]) == (27, 16)

    async def test_log_stream_waits_for_a_queued_action(self, api: httpx.AsyncClient) -> None:
        busy = await submitted(api, ECHO, stdin_open=True, demand={"cpu": 1})
        async with following(api, busy) as first:
            await first.until("stdout", b"ready\n")
            waiting = await submitted(api, "echo mine", demand={"cpu": 1})
            async with following(api, waiting) as stream:
                assert (await api.get(f"/v1/actions/{waiting}")).json()["state"] == "queued"
                await send(api, busy, end=True)
                await stream.to_the_end()
            assert stream.content("stdout") == b"mine\n"

    async def test_reconnected_stream_continues_after_the_last_event_id(self, api: httpx.AsyncClient) -> None:
        id = await submitted(api, ECHO, stdin_open=True)
        async with following(api, id) as stream:
            last = await stream.until("stdout", b"ready\n")
        await send(api, id, text="one\n")
        async with following(api, id, after=last.id) as stream:
            last = await stream.until("stderr", b"err one\n")
        await send(api, id, end=True)
        await settled(api, id)
        async with following(api, id, after=last.id) as stream:
            await stream.to_the_end()
        assert stream.content("stdout").endswith(b"over\n")
        assert b"ready" not in stream.content("stdout")
        assert stream.content("stderr") == b""

    async def test_stream_of_a_settled_action_sends_retained_output(self, api: httpx.AsyncClient) -> None:
        id = await submitted(api, "echo out; echo err >&2; exit 3")
        await settled(api, id)
        async with following(api, id) as stream:
            end = await stream.to_the_end()
        assert (stream.content("stdout"), stream.content("stderr")) == (b"out\n", b"err\n")
        assert (end.data["outcome"], end.data["exit_code"]) == ("user_error", 3)
        async with following(api, id, after=end.id) as stream:
            await stream.to_the_end()
        assert [event.name for event in stream.seen] == ["end"]

    async def test_stream_of_a_cancelled_queued_action_has_only_an_end(self, api: httpx.AsyncClient) -> None:
        busy = await submitted(api, ECHO, stdin_open=True, demand={"cpu": 1})
        async with following(api, busy) as first:
            await first.until("stdout", b"ready\n")
            id = await submitted(api, "true", demand={"cpu": 1})
            async with following(api, id) as stream:
                await api.delete(f"/v1/actions/{id}")
                assert (await stream.to_the_end()).data["outcome"] == "cancelled"
        assert [event.name for event in stream.seen] == ["end"]
        await send(api, busy, end=True)

    async def test_stream_delivers_any_bytes_and_never_splits_characters(self, api: httpx.AsyncClient) -> None:
        script = "printf 'a\\303'; read x; printf '\\244'; read x; printf '\\377\\376'"
        id = await submitted(api, script, stdin_open=True)
        async with following(api, id) as stream:
            await stream.until("stdout", b"a")
            await send(api, id, text="\n")
            await stream.until("stdout", "ä".encode())
            await send(api, id, text="\n")
            await stream.to_the_end()
        assert stream.content("stdout") == "aä".encode() + b"\xff\xfe"
        assert [event.data.get("base64") is not None for event in stream.seen[:-1]] == [False, False, True]

    @pytest.mark.parametrize("live", [True, False])
    async def test_output_past_the_retained_size_is_announced_as_truncated(
        self, api: httpx.AsyncClient, live: bool
    ) -> None:
        id = await submitted(api, f"head -c {3 * MIB} /dev/zero; echo over >&2; read x", stdin_open=True)
        if not live:
            await send_when_it_reads(api, id)
            await settled(api, id)
        async with following(api, id) as stream:
            if live:
                await stream.until("stderr", b"over\n")
                await send(api, id, end=True)
            end = await stream.to_the_end()
        assert stream.content("stdout") == bytes(MIB)
        (cut,) = [event for event in stream.seen if event.name == "truncated"]
        assert (cut.data["stream"], cut.data["kept_bytes"]) == ("stdout", MIB)
        assert end.data["stdout_bytes"] == 3 * MIB
        async with following(api, id, after=cut.id) as stream:
            await stream.to_the_end()
        assert "truncated" not in [event.name for event in stream.seen], "it was told"

    async def test_slow_reader_does_not_block_the_action_or_others(self, api: httpx.AsyncClient) -> None:
        id = await submitted(api, f"head -c {8 * MIB} /dev/zero; echo over >&2")
        async with following(api, id) as stream:
            await stream.next()
            assert (await settled(api, id))["outcome"] == "ok"
            other = await submitted(api, "echo hello")
            async with following(api, other) as quick:
                await quick.to_the_end()
            await stream.to_the_end()
        assert len(stream.content("stdout")) == MIB

    async def test_streams_above_max_log_streams_are_refused(self, api: httpx.AsyncClient) -> None:
        id = await submitted(api, ECHO, stdin_open=True)
        async with following(api, id) as a, following(api, id) as b, following(api, id) as c, following(api, id) as d:
            for stream in (a, b, c, d):
                await stream.until("stdout", b"ready\n")
            refused = await api.get(f"/v1/actions/{id}/logs")
            assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
            assert int(refused.headers["retry-after"]) >= 1
            await send(api, id, end=True)
            for stream in (a, b, c, d):
                await stream.to_the_end()
                assert stream.content("stdout") == b"ready\nover\n"
        async with asyncio.timeout(10):
            while (again := await api.get(f"/v1/actions/{id}/logs")).status_code != 200:
                await asyncio.sleep(0.02)
        assert again.text.count("event: end") == 1

    async def test_stream_continues_through_a_manager_restart(self, system: System, api: httpx.AsyncClient) -> None:
        id = await submitted(api, ECHO, stdin_open=True)
        async with following(api, id) as stream:
            await stream.until("stdout", b"ready\n")
            system.kill("cpu")
            await system.start("cpu")
            await send(api, id, text="one\n", end=True, offset=0)
            await stream.to_the_end()
        assert stream.content("stdout") == b"ready\ngot one\nover\n"

    async def test_logs_and_input_of_another_project_are_not_found(
        self, system: System, api: httpx.AsyncClient
    ) -> None:
        id = await submitted(api, ECHO, stdin_open=True)
        headers = {"authorization": f"Bearer {STRANGER}"}
        async with httpx.AsyncClient(base_url=system.url, headers=headers) as stranger:
            assert (await stranger.get(f"/v1/actions/{id}/logs")).status_code == 404
            assert (await send(stranger, id, text="x")).status_code == 404
        assert (await api.get(f"/v1/actions/{uuid4()}/logs")).status_code == 404
        async with following(api, id) as stream:
            await stream.until("stdout", b"ready\n")
            await send(api, id, end=True)

    @pytest.mark.parametrize(
        ("caller", "path"), [("scheduler", "output"), ("scheduler", "input"), ("gateway", "grants")]
    )
    async def test_node_routes_refuse_tokens_of_other_callers(self, system: System, caller: str, path: str) -> None:
        headers = {"authorization": f"Bearer {system.token(caller, 'cpu')}"}
        async with httpx.AsyncClient(base_url=system.url_of("cpu"), headers=headers) as peer:
            assert (await peer.post(f"/internal/{path}", json={})).status_code == 401

    @pytest.mark.parametrize("wrong", ["x", "1:2", "1:-2:3", "1:2:3:4"])
    async def test_invalid_last_event_id_is_refused(self, api: httpx.AsyncClient, wrong: str) -> None:
        id = await submitted(api, "true")
        answer = await api.get(f"/v1/actions/{id}/logs", headers={"last-event-id": wrong})
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "header.Last-Event-ID")

    async def test_stream_of_a_retried_action_sends_a_restart_event(self, api: httpx.AsyncClient) -> None:
        """As after an infrastructure error: the client saw grant 7, and another grant produced the result."""
        id = await submitted(api, "echo mine")
        await settled(api, id)
        async with following(api, id, after="7:100:0") as stream:
            await stream.to_the_end()
        assert [event.name for event in stream.seen] == ["restart", "stdout", "end"]
        assert stream.content("stdout") == b"mine\n"


class TestSdk:
    async def test_async_stream_and_input_survive_a_gateway_restart(
        self, system: System, api: httpx.AsyncClient
    ) -> None:
        async with AsyncTangram(system.url, API_KEY) as tangram:
            id = UUID(await submitted(api, ECHO, stdin_open=True))
            seen, sent = b"", 0
            async for event in tangram.stream_logs(id):
                if isinstance(event, OutputData) and event.stream == "stdout":
                    assert event.offset == len(seen)
                    seen += event.data
                if seen == b"ready\n" and sent == 0:
                    system.kill("gateway", signal.SIGTERM)
                    await system.start("gateway")
                    sent = await tangram.send_input(id, "ä\u2028\n")
                if seen.endswith("\u2028\n".encode()) and sent == 6:
                    sent = await tangram.send_input(id, b"\xff\n", offset=sent, end=True)
        assert isinstance(event, OutputEnd)
        assert (event.outcome, sent) == ("ok", 8)
        assert seen == "ready\ngot ä\u2028\n".encode() + b"got \xff\nover\n"

    async def test_blocking_client_streams_output_and_sends_input(self, system: System) -> None:
        def follow() -> list[OutputEvent]:
            with Tangram(system.url, API_KEY) as tangram:
                action = tangram.submit(
                    task="t", argv=["sh", "-c", ECHO], stdin_open=True, memory_mib=64, disk_mib=8, cpu=0.1
                )
                tangram.send_input(action.id, "one\n", end=True)
                return list(tangram.stream_logs(action.id))

        seen = await asyncio.to_thread(follow)
        stdout = b"".join(event.data for event in seen if isinstance(event, OutputData) and event.stream == "stdout")
        assert stdout == b"ready\ngot one\nover\n"
        assert isinstance(seen[-1], OutputEnd)

    async def test_unknown_action_raises_not_found(self, system: System) -> None:
        async with AsyncTangram(system.url, API_KEY) as tangram:
            with pytest.raises(NotFound):
                await anext(aiter(tangram.stream_logs(uuid4())))
            with pytest.raises(NotFound):
                await tangram.send_input(uuid4(), "x")


async def send_when_it_reads(api: httpx.AsyncClient, id: str) -> None:
    async with following(api, id) as stream:
        await stream.until("stderr", b"over\n")
        await send(api, id, end=True)


class TestInput:
    async def test_sent_input_follows_the_submitted_stdin(self, api: httpx.AsyncClient) -> None:
        id = await submitted(api, "echo ready; cat", stdin="first ", stdin_open=True)
        async with following(api, id) as stream:
            await stream.until("stdout", b"first ")
            any_bytes = b64encode(b"second\xff").decode()
            assert (await send(api, id, base64=any_bytes, end=True)).json() == {"offset": 7}
            await stream.to_the_end()
        assert stream.content("stdout") == b"ready\nfirst second\xff"

    async def test_repeated_input_at_an_offset_is_delivered_once(self, api: httpx.AsyncClient) -> None:
        id = await submitted(api, "echo ready; cat", stdin_open=True)
        async with following(api, id) as stream:
            await stream.until("stdout", b"ready\n")
            for _ in range(2):
                assert (await send(api, id, text="abc", offset=0)).json() == {"offset": 3}
            assert (await send(api, id, text="cde", offset=2)).json() == {"offset": 5}
            refused = await send(api, id, text="x", offset=6)
            assert (refused.status_code, refused.json()["errors"][0]["field"]) == (409, "offset")
            for _ in range(2):
                last = await send(api, id, text="f", offset=5, end=True)
            await stream.to_the_end()
        assert stream.content("stdout") == b"ready\nabcdef"
        assert last.status_code in (200, 409), "the second one comes while it runs, or after its end"

    async def test_action_that_is_not_running_refuses_input(self, api: httpx.AsyncClient) -> None:
        busy = await submitted(api, ECHO, stdin_open=True, demand={"cpu": 1})
        async with following(api, busy) as stream:
            await stream.until("stdout", b"ready\n")
            queued = await submitted(api, "cat", stdin_open=True, demand={"cpu": 1})
            early = await send(api, queued, text="x")
            await api.delete(f"/v1/actions/{queued}")
            await send(api, busy, end=True)
            await stream.to_the_end()
        late = await send(api, busy, text="x")
        for answer in (early, late):
            assert (answer.status_code, answer.json()["code"]) == (409, "not_running")

    async def test_action_without_open_stdin_refuses_input(self, api: httpx.AsyncClient) -> None:
        id = await submitted(api, "echo ready; sleep 60")
        async with following(api, id) as stream:
            await stream.until("stdout", b"ready\n")
            answer = await send(api, id, text="x")
        assert (answer.status_code, answer.json()["code"]) == (409, "input_closed")
        await api.delete(f"/v1/actions/{id}")

    async def test_unread_input_is_limited_to_one_mebibyte(self, api: httpx.AsyncClient) -> None:
        id = await submitted(api, "echo ready; sleep 60", stdin_open=True)
        async with following(api, id) as stream:
            await stream.until("stdout", b"ready\n")
            answers = [await send(api, id, text="x" * MIB) for _ in range(3)]
            assert [answer.status_code for answer in answers] == [200, 429, 429]
            assert (answers[2].json()["code"], answers[2].headers["retry-after"]) == ("input_full", "1")
            other = await submitted(api, "echo hello")
            assert (await settled(api, other))["outcome"] == "ok"
        await api.delete(f"/v1/actions/{id}")

    async def test_four_mebibytes_of_input_arrive_completely(self, api: httpx.AsyncClient) -> None:
        id = await submitted(api, "echo ready; wc -c", stdin_open=True)
        async with following(api, id) as stream:
            await stream.until("stdout", b"ready\n")
            sent = 0
            while sent < 4 * MIB:
                answer = await send(api, id, text="x" * (MIB // 2), offset=sent)
                sent = answer.json()["offset"] if answer.status_code == 200 else sent
            await send(api, id, end=True)
            await stream.to_the_end()
        assert stream.content("stdout") == b"ready\n%d\n" % (4 * MIB)

    @pytest.mark.parametrize("body", [{"text": "x", "base64": "eA=="}, {"base64": "!"}, {"text": "x" * (MIB + 1)}])
    async def test_invalid_input_body_is_refused(self, api: httpx.AsyncClient, body: dict[str, str]) -> None:
        assert (await send(api, str(uuid4()), **body)).status_code == 422
