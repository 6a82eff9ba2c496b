"""Test judges through all services, with an engine that sleeps, wakes and fails on request."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from arl_wire.scores import MAX_CHARACTERS
from support.conditions import eventually
from support.engine import RunningEngine, running_engine, verdict_of
from support.postgres import Databases
from support.system import API_KEY, System, running_system

OPENAI_CHAT = Path(__file__).parents[1] / "contract" / "clients" / "openai_chat.py"
DEVICE_MIB = 100
"""MiniLM needs 87 MiB and the engine 60 MiB, so only one of them fits."""
OPTIONS = {"prompt": "{response}", "pattern": r"verdict: (\w+)", "words": {"good": 1, "bad": 0}}
JUDGE = {"name": "judge", "kind": "judge", "source": "tiny", "options": {"judge": OPTIONS | {"samples": 3}}}
PAIR = {"text": "a cat", "reference": "a cat"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engine() -> AsyncIterator[RunningEngine]:
    async with running_engine() as engine:
        yield engine


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases, engine: RunningEngine) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    engines = {"tiny": engine.settings(mib=60, sleep_timeout_s=1.0, wake_timeout_s=5.0)}
    node = {
        "TANGRAM_ENGINES": json.dumps(engines),
        "TANGRAM_SERVICES": "minilm",
        "TANGRAM_DEVICE_MIB": str(DEVICE_MIB),
        "TANGRAM_MODEL_SWAP_DELAY_S": "0.2",
        "TANGRAM_POLL_IDLE_S": "0.2",
    }
    async with running_system(owner_url, scores=True, overrides={"gpu": node}) as system:
        async with system.client() as api:
            assert (await api.post("/v1/reward-services", json=JUDGE)).status_code == 201
            await until(api, available=True)
        yield system
    await databases.drop(owner_url)


async def until(api: httpx.AsyncClient, **wanted: Any) -> None:
    async def is_so() -> bool:
        found = (await api.get("/v1/reward-services/judge")).json()
        [node] = found["nodes"] or [{}]
        return wanted.items() <= {**node, **found}.items()

    await eventually(is_so)


async def judged(api: httpx.AsyncClient, *texts: str, service: str = "judge", **more: Any) -> list[dict[str, Any]]:
    body = {"service": service, "task": "j", "items": [{"text": text} for text in texts], **more}
    answer = await api.post("/v1/scores", json=body)
    assert answer.status_code == 200, answer.text
    scores: list[dict[str, Any]] = answer.json()["scores"]
    return scores


async def chat(api: httpx.AsyncClient, text: str, path: str = "", **more: Any) -> httpx.Response:
    body = {"model": "/models/genrm", "messages": [{"role": "user", "content": text}], **more}
    return await api.post(f"{path}/v1/chat/completions", json=body)


async def test_items_and_chats_are_answered_without_leaking_the_engine_key(
    api: httpx.AsyncClient, system: System, engine: RunningEngine
) -> None:
    scores = await judged(api, "say:verdict: good|verdict: bad|none", "say:none", "x" * 20_000)
    assert (scores[0]["score"], scores[0]["details"]["verdicts"]) == (0.5, [1.0, 0.0, None])
    assert [each["error"]["code"] for each in scores[1:]] == ["verdict_unparsed", "refused"]
    sample = {"prompt": "Is it?", "response": "say:verdict: bad", "label": "yes"}
    assert (await api.post("/reward-services/judge/slime/reward", json=sample)).json() == 0.0
    said = (await chat(api, "say:yes|no", path="/t/mine/reward-services/judge", n=2, logprobs=True, top_k=5)).json()
    assert [each["message"]["content"] for each in said["choices"]] == ["yes", "no"]
    assert (said["object"], said["model"], said["choices"][0]["logprobs"]) == (
        "chat.completion",
        "judge",
        {"content": []},
    )
    assert {name: said["asked"][name] for name in ("n", "top_k", "model")} == {"n": 2, "top_k": 5, "model": "tiny"}
    listed = (await api.get("/v1/actions", params={"task": "mine"})).json()["items"]
    assert [action["outcome"] for action in listed] == ["ok"]
    spans = (await api.get(f"/v1/actions/{listed[0]['id']}/trace")).json()["spans"]
    shown = [(span["name"], span["attributes"].get("tangram.engine")) for span in spans[4:-1]]
    assert shown == [("device wait", None), ("wake engine", "tiny"), ("completion", "tiny")]
    assert engine.settings(1)["api_key"] not in "".join(system.log(name) for name in system.processes)


def nested(depth: int) -> list[Any]:
    return [nested(depth - 1)] if depth else []


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"stream": True}, 400, "stream"),
        ({"n": 0}, 400, "n"),
        ({"request_id": "somebody's"}, 400, "request_id"),
        ({"extra": nested(300)}, 400, None),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "text": ""}]}]}, 400, None),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": []}]}, 400, "messages.0.tool_calls"),
        ({"messages": [{"role": "user", "content": "a" * (MAX_CHARACTERS + 1)}]}, 400, "messages.0"),
        ({"model": "minilm"}, 400, "model"),
    ],
)
async def test_invalid_chat_is_refused_in_the_openai_format(
    api: httpx.AsyncClient, body: dict[str, Any], status: int, param: str | None
) -> None:
    answer = await chat(api, "hello", **body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["message"] != "") == (status, "invalid_request_error", True)
    assert param is None or error["param"] == param


class TestEngineFaults:
    """Every test leaves the engine healthy."""

    pytestmark = pytest.mark.slow

    @pytest.mark.parametrize("fault", ["garbled", "no_choices", "500", "429"])
    async def test_invalid_engine_answer_is_an_infrastructure_error(
        self, api: httpx.AsyncClient, engine: RunningEngine, fault: str
    ) -> None:
        await engine.tell(answer=fault)
        answer = await chat(api, "hello")
        body = {"service": "judge", "task": "j", "items": [{"text": "say:verdict: good"}]}
        action = (await api.post("/v1/actions", json={"kind": "score", **body}, params={"wait": 30})).json()
        await engine.tell(answer=None)
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "server_error")
        assert (action["outcome"], action["reason"]) == ("infra_error", "engine_failed")
        assert (await judged(api, "say:verdict: good"))[0]["score"] == 1.0

    async def test_cancelled_action_aborts_its_engine_requests(
        self, api: httpx.AsyncClient, engine: RunningEngine
    ) -> None:
        await engine.tell(hang=True)
        before = (await engine.state())["aborted"]
        body = {"task": "j", "kind": "score", "service": "judge", "items": [{"text": "a"}, {"text": "b"}]}
        id = (await api.post("/v1/actions", json=body)).json()["id"]

        async def are_there() -> bool:
            return bool((await engine.state())["in_flight"] == 2)

        await eventually(are_there)
        await api.delete(f"/v1/actions/{id}")

        async def are_gone() -> bool:
            state = await engine.state()
            return bool(state["in_flight"] == 0 and state["aborted"] == before + 2)

        await eventually(are_gone)
        await engine.tell(hang=False)
        assert (await api.get(f"/v1/actions/{id}", params={"wait": 10})).json()["outcome"] == "cancelled"

    async def test_failed_wake_is_retried_for_a_blocking_score(
        self, api: httpx.AsyncClient, engine: RunningEngine
    ) -> None:
        await asleep(api, engine)
        await engine.tell(wakes_that_fail=1)
        body = {"task": "j", "kind": "score", "service": "judge", "items": [{"text": "say:verdict: bad"}]}
        failed = (await api.post("/v1/actions", json=body, params={"wait": 30})).json()
        assert (failed["outcome"], failed["reason"]) == ("infra_error", "wake_failed")
        await engine.tell(wakes_that_fail=1)
        assert (await judged(api, "say:verdict: bad"))[0]["score"] == 0.0

    async def test_engine_crash_is_reported_and_later_calls_wait_for_recovery(
        self, api: httpx.AsyncClient, engine: RunningEngine
    ) -> None:
        await engine.tell(hang=True)
        body = {"task": "j", "kind": "score", "service": "judge", "items": [{"text": "say:verdict: good"}]}
        id = (await api.post("/v1/actions", json=body)).json()["id"]

        async def is_there() -> bool:
            return bool((await engine.state())["in_flight"])

        await eventually(is_there)
        engine.kill()
        action = (await api.get(f"/v1/actions/{id}", params={"wait": 20})).json()
        assert (action["outcome"], action["reason"]) == ("infra_error", "engine_gone")

        async def is_said() -> bool:
            [node] = (await api.get("/v1/reward-services/judge")).json()["nodes"]
            return bool(node["health"].startswith("engine_gone"))

        await eventually(is_said)
        waiting = asyncio.create_task(judged(api, "say:verdict: good"))
        await engine.start()
        assert (await waiting)[0]["score"] == 1.0
        await until(api, health="ok")

    async def test_engine_that_frees_nothing_keeps_its_memory_and_is_retried(
        self, api: httpx.AsyncClient, engine: RunningEngine
    ) -> None:
        await judged(api, "say:verdict: good")
        await engine.tell(sleep_frees_nothing=True)
        body = {"task": "j", "kind": "score", "service": "minilm", "items": [PAIR]}
        action = (await api.post("/v1/actions", json=body, params={"wait": 30})).json()
        assert (action["outcome"], action["reason"]) == ("infra_error", "no_room")
        await engine.tell(sleep_frees_nothing=False)
        assert (await judged(api, "say:verdict: good"))[0]["score"] == 1.0
        action = (await api.post("/v1/actions", json=body, params={"wait": 30})).json()
        assert action["outcome"] == "ok"
        await until(api, state="host")


@pytest.mark.slow
async def test_official_openai_client_reads_answers_and_errors(system: System, openai: Path) -> None:
    command = (sys.executable, OPENAI_CHAT, openai, f"{system.url}/reward-services/judge/v1", API_KEY)
    ran = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr[-4000:]
    said = json.loads(ran.stdout)
    assert (said["answers"], said["tokens"], "judge" in said["models"]) == (["yes", "no"], 2, True)
    assert (said["refused"], said["unknown"]) == (["invalid_request_error", "stream"], 401)


@pytest.mark.slow
async def test_cli_registers_a_judge_with_its_prompt_file(system: System, tmp_path: Path) -> None:
    file = tmp_path / "judge.json"
    for content, code in ((json.dumps(OPTIONS), 0), ("{", 2), ('{"prompt": "?"}', 2)):
        file.write_text(content)
        command = (sys.executable, "-m", "arl_tangram.cli", "reward-services", "register", "second", "judge", "tiny")
        environment = os.environ | {"TANGRAM_URL": system.url, "TANGRAM_API_KEY": API_KEY, "TANGRAM_DIR": str(tmp_path)}
        ran = await asyncio.to_thread(
            subprocess.run,
            (*command, "--judge", file, "-o", "json"),
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ran.returncode == code, ran.stderr
        if code == 0:
            assert json.loads(ran.stdout)["options"]["judge"]["pattern"] == OPTIONS["pattern"]
            async with system.client() as api:
                assert (await api.delete("/v1/reward-services/second")).status_code == 204


async def asleep(api: httpx.AsyncClient, engine: RunningEngine) -> None:
    """Score with another service so that the engine is put to sleep."""
    body = {"task": "j", "kind": "score", "service": "minilm", "items": [PAIR]}
    assert (await api.post("/v1/actions", json=body, params={"wait": 30})).json()["outcome"] == "ok"
    assert (await engine.state())["asleep"]


@pytest.mark.slow
async def test_judge_and_similarity_swap_under_load_without_lost_requests(
    api: httpx.AsyncClient, engine: RunningEngine
) -> None:
    await engine.tell(chat_s=0.1)
    before = await engine.state()

    async def similar(at: int) -> float:
        """Score with a separate action, because a retry would hide a refusal."""
        items = [{"text": f"{at} cats", "reference": f"{at} cats"}]
        body = {"kind": "score", "service": "minilm", "task": f"m{at % 3}", "items": items}
        action = (await api.post("/v1/actions", json=body, params={"wait": 50})).json()
        assert action["outcome"] == "ok", action
        return float(action["result"]["scores"][0]["score"])

    async def judge(at: int) -> float:
        [score] = await judged(api, f"text {at}")
        return float(score["score"])

    async def client(at: int) -> None:
        for turn in range(10):
            number = at * 10 + turn
            if at % 2:
                assert await similar(number) == pytest.approx(1.0, abs=1e-4)
            else:
                assert await judge(number) == (1.0 if verdict_of(f"text {number}") == "good" else 0.0)

    await asyncio.gather(*(client(at) for at in range(12)))
    after = await engine.state()
    assert after["chats"] - before["chats"] == 60
    assert after["sleeps"] > before["sleeps"], "there is room for one of them"
    await engine.tell(chat_s=0.0)
