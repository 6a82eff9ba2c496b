"""Test the reward protocols of trainers: coalesced, durable and never an accidental 0."""

import asyncio
import json
import math
import signal
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio

from arl_wire.scores import MAX_CHARACTERS
from support.conditions import eventually
from support.postgres import Databases
from support.system import API_KEY, System, running_system

REFERENCE: dict[str, Any] = json.loads((Path(__file__).parents[1] / "support" / "minilm_reference.json").read_text())
TEXTS: list[str] = REFERENCE["texts"]
COSINES = np.array(REFERENCE["embeddings"]) @ np.array(REFERENCE["embeddings"]).T
SHORT = [at for at, text in enumerate(TEXTS) if len(text) < 100]
TOLERANCE = 1e-4


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    async with running_system(owner_url, scores=True) as system:
        yield system
    await databases.drop(owner_url)


async def json_of(api: httpx.AsyncClient, path: str, body: Any, **options: Any) -> Any:
    answer = await api.post(path, json=body, **options)
    assert answer.status_code == 200, answer.text
    return answer.json()


def about(score: float) -> Any:
    return pytest.approx(score, abs=TOLERANCE)


class TestCoalescing:
    async def test_concurrent_calls_share_actions_and_get_their_own_scores(self, api: httpx.AsyncClient) -> None:
        pairs = [(SHORT[at % 8], SHORT[at // 8 % 8]) for at in range(64)]

        async def call(at: int, one: int, other: int) -> tuple[str, float]:
            item = {"text": TEXTS[one], "reference": TEXTS[other]}
            body = {"service": "minilm", "task": "together", "trajectory": f"t{at}", "items": [item]}
            said = await json_of(api, "/v1/scores", body)
            return said["action"], said["scores"][0]["score"]

        found = await asyncio.gather(*(call(at, *pair) for at, pair in enumerate(pairs)))
        assert [score for _, score in found] == [about(COSINES[pair]) for pair in pairs]
        listed = (await api.get("/v1/actions", params={"task": "together", "limit": 100})).json()["items"]
        assert {action["id"] for action in listed} == {action for action, _ in found}
        assert len(listed) < 32
        assert {action["outcome"] for action in listed} == {"ok"}

    async def test_invalid_item_of_a_shared_action_fails_only_its_call(self, api: httpx.AsyncClient) -> None:
        good = {"text": TEXTS[0], "reference": TEXTS[1]}

        async def call(item: dict[str, str]) -> httpx.Response:
            return await api.post("/v1/scores", json={"service": "minilm", "task": "apart", "items": [item]})

        answers = await asyncio.gather(*(call({"text": "x"} if at % 4 == 3 else good) for at in range(12)))
        assert [answer.status_code for answer in answers] == [422 if at % 4 == 3 else 200 for at in range(12)]
        assert answers[3].json()["errors"][0]["field"] == "items.0.reference"

    async def test_action_without_waiting_clients_is_cancelled(self, api: httpx.AsyncClient, system: System) -> None:
        system.processes["scheduler"].send_signal(signal.SIGSTOP)
        body = {"service": "minilm", "task": "gone", "items": [{"text": "a", "reference": "b"}]}
        with pytest.raises(httpx.ReadTimeout):
            await api.post("/v1/scores", json=body, timeout=0.5)
        answer = await api.post("/v1/scores", json={**body, "within_s": 0.5})
        assert (answer.status_code, answer.json()["code"], "retry-after" in answer.headers) == (
            503,
            "unavailable",
            True,
        )

        async def are_unwanted() -> bool:
            listed = (await api.get("/v1/actions", params={"task": "gone"})).json()["items"]
            return [action.get("cancel_requested") for action in listed] == [True, True]

        await eventually(are_unwanted)
        system.processes["scheduler"].send_signal(signal.SIGCONT)


class TestOpenRlhf:
    async def test_query_is_compared_with_its_label(self, api: httpx.AsyncClient) -> None:
        body = {"query": [f"Q: {TEXTS[0]}"], "prompts": ["Q: "], "labels": [TEXTS[1]]}
        said = await json_of(api, "/reward-services/minilm/get_reward", body)
        assert said == {
            "rewards": [about(COSINES[0, 1])],
            "scores": [about(COSINES[0, 1])],
            "extra_logs": {"truncated": [0.0]},
        }

    async def test_empty_query_returns_no_rewards(self, api: httpx.AsyncClient) -> None:
        said = await json_of(api, "/get_reward", {"query": [], "prompts": [], "labels": []})
        assert said["rewards"] == []

    async def test_unscored_text_is_an_error_instead_of_zero(self, api: httpx.AsyncClient) -> None:
        answer = await api.post("/get_reward?service=minilm", json={"query": [""], "prompts": [""], "labels": ["x"]})
        assert (answer.status_code, answer.json()["code"]) == (422, "not_scored")
        answer = await api.post("/get_reward", json={"query": ["x"], "prompts": [], "labels": ["x"]})
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "prompts")

    @pytest.mark.parametrize("end", ["<|im_end|>\n", "<｜end▁of▁sentence｜>", "</s><|endoftext|>"])
    async def test_end_of_sequence_tokens_are_removed_before_scoring(self, api: httpx.AsyncClient, end: str) -> None:
        body = {"query": [f"Q: {TEXTS[0]}{end}"], "prompts": ["Q: "], "labels": [TEXTS[1]]}
        said = await json_of(api, "/reward-services/minilm/get_reward", body)
        assert said["rewards"] == [about(COSINES[0, 1])]
        sample = {"prompt": "Q: ", "response": f"{TEXTS[0]}{end}", "label": TEXTS[1]}
        assert await json_of(api, "/reward-services/minilm/slime/reward", sample) == about(COSINES[0, 1])

    @pytest.mark.parametrize(("label", "response"), [(4, "4"), ([1, "é"], '[1, "é"]'), ({"a": None}, '{"a": null}')])
    async def test_label_that_is_no_text_is_compared_as_json(
        self, api: httpx.AsyncClient, label: Any, response: str
    ) -> None:
        body = {"query": [response, TEXTS[0]], "prompts": ["", ""], "labels": [label, label]}
        same, other = (await json_of(api, "/reward-services/minilm/get_reward", body))["rewards"]
        assert same == about(1)
        assert other < 0.9

    @pytest.mark.parametrize("service", ["exact", "minilm"])
    async def test_missing_label_is_refused_with_its_field(self, api: httpx.AsyncClient, service: str) -> None:
        body = {"query": ["x", "y"], "prompts": ["", ""], "labels": ["x", ""]}
        answer = await api.post(f"/reward-services/{service}/get_reward", json=body)
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "labels.1")
        assert "needs a label" in answer.json()["detail"]


class TestUnusualText:
    @pytest.mark.parametrize("written", ["\\u0000", "\\ud83d", "\\uDC00x", "\\ud83d\\ud83d\\udE00"])
    async def test_null_and_lone_surrogate_escapes_are_replaced_and_scored(
        self, api: httpx.AsyncClient, written: str
    ) -> None:
        content = f'{{"query": ["{TEXTS[0]} {written}"], "prompts": [""], "labels": ["x"]}}'
        headers = {"content-type": "application/json"}
        answer = await api.post("/reward-services/minilm/get_reward", content=content, headers=headers)
        assert answer.status_code == 200, answer.text

    async def test_escaped_backslash_text_is_left_unchanged(self, api: httpx.AsyncClient) -> None:
        text = "a \\u0000 b \U0001f600 \\\\ud83d"
        body = {"query": [text], "prompts": [""], "labels": [text]}
        assert (await json_of(api, "/reward-services/minilm/get_reward", body))["rewards"] == [about(1)]

    async def test_unscored_parameter_replaces_a_missing_score(self, api: httpx.AsyncClient) -> None:
        body = {"query": ["", TEXTS[0]], "prompts": ["", ""], "labels": [TEXTS[1], TEXTS[1]]}
        answer = await api.post("/reward-services/minilm/get_reward?unscored=-1.5", json=body)
        assert answer.json()["rewards"] == [-1.5, about(COSINES[0, 1])]
        assert answer.headers["tangram-unscored"] == "0"
        classified = await json_of(api, "/reward-services/quality/classify?unscored=-1.5", {"input": ""})
        assert classified["data"][-1]["probs"][-1] == -1.5
        empty = {"query": ["x"], "prompts": [""], "labels": [" "]}
        answer = await api.post("/reward-services/minilm/get_reward?unscored=0", json=empty)
        assert (answer.status_code, "empty_reference" in answer.text) == (422, True)


BAD = [
    ("/reward-services/minilm/v1/score", {"query": [1], "items": [[2]], "label_token_ids": [1]}, "items.0"),
    ("/v1/score", {"query": [1], "items": ["y"], "model": "minilm"}, "query"),
    ("/v1/score", {"query": [1], "items": ["y"], "model": "minilm", "label_token_ids": [1]}, "items"),
    ("/reward-services/minilm/v1/completions", {"prompt": [[1, 2]], "prompt_logprobs": 1}, "prompt.0"),
    ("/v1/completions", {"prompt": "x", "prompt_logprobs": 1, "max_tokens": 2}, "max_tokens"),
    ("/classify", {"messages": []}, "messages"),
    ("/score", {"text_1": [], "text_2": ["x"]}, "text_1"),
    ("/score", {"text_1": "x", "text_2": []}, "text_2"),
    ("/rerank", {"query": "x", "documents": []}, "documents"),
    ("/classify", {"input": "x" * (MAX_CHARACTERS + 1)}, "input"),
    ("/reward-services/minilm/verify", {"response": {"output": None}, "label": "x"}, "response.output"),
    ("/reward-services/minilm/verify", {"response": {"output": "x"}, "label": "x"}, "response.output"),
    ("/reward-services/minilm/verify", {"response": {"output": ["x"]}, "label": "x"}, "response.output.0"),
    (
        "/reward-services/exact/verify",
        {"response": {"output": [{"content": "x"}]}, "label": "x"},
        "response.output.0.type",
    ),
    (
        "/reward-services/exact/verify",
        {"response": {"output": [{"type": "output_text", "text": "x"}]}, "label": "x"},
        "response.output.0.type",
    ),
    (
        "/reward-services/exact/verify",
        {"response": {"output": [{"role": "assistant"}]}, "label": "x"},
        "response.output.0.content",
    ),
    (
        "/reward-services/exact/verify",
        {"response": {"output": [{"role": "model", "content": "x"}]}, "label": "x"},
        "response.output.0.role",
    ),
    (
        "/reward-services/exact/verify",
        {"response": {"output": [{"role": "assistant", "content": [{"value": "x"}]}]}, "label": "x"},
        "response.output.0.content.0",
    ),
    (
        "/reward-services/minilm/slime/reward",
        {"prompt": [{"role": "user", "content": 5}], "response": "x"},
        "prompt.0.content",
    ),
    ("/reward-services/exact/get_reward", {"query": ["x"], "prompts": ["y"], "labels": ["x"]}, "query.0"),
]


@pytest.mark.parametrize(("path", "body", "field"), BAD)
async def test_invalid_request_is_refused_with_its_field(
    api: httpx.AsyncClient, path: str, body: Any, field: str
) -> None:
    answer = await api.post(path, json=body)
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.json()["errors"][0]["field"] == field


class TestRequestTarget:
    async def test_key_task_service_and_trajectory_may_be_in_the_url(
        self, system: System, api: httpx.AsyncClient
    ) -> None:
        body = {"prompt": "Q: ", "response": TEXTS[2], "label": TEXTS[3]}
        async with httpx.AsyncClient(base_url=system.url.replace("//", f"//{API_KEY}@")) as without_headers:
            path = "/t/by-address/reward-services/minilm/slime/reward?trajectory=r7&step=3"
            assert await json_of(without_headers, path, body) == about(COSINES[2, 3])
        [action] = (await api.get("/v1/actions", params={"task": "by-address"})).json()["items"]
        assert action["trajectory"] == "r7"

    async def test_api_key_is_accepted_as_basic_auth_password(self, system: System) -> None:
        said = b64encode(f"trainer:{API_KEY}".encode()).decode()
        async with httpx.AsyncClient(base_url=system.url, headers={"authorization": f"Basic {said}"}) as client:
            assert "minilm" in {each["id"] for each in (await client.get("/v1/models")).json()["data"]}
            wrong = await client.get("/v1/models", headers={"authorization": "Basic !"})
        assert wrong.status_code == 401

    async def test_service_in_the_url_is_the_first_listed_model(self, system: System) -> None:
        """TRL's teacher client sends these requests at its start."""
        base = f"{system.url.replace('//', f'//{API_KEY}@')}/t/opd/reward-services/quality"
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"{base}/health")).status_code == 200
            assert (await client.get(f"{base}/v1/models")).json()["data"][0]["id"] == "quality"

    @pytest.mark.parametrize(
        ("path", "body"),
        [
            ("/classify", {"input": "x"}),
            ("/pooling", {"input": "x"}),
            ("/v1/embeddings", {"input": "x"}),
            ("/score", {"text_1": "x", "text_2": "y"}),
            ("/score", {"query": "x", "items": ["y"], "label_token_ids": [1]}),
            ("/rerank", {"query": "x", "documents": ["y"]}),
            ("/v1/completions", {"prompt": "x", "prompt_logprobs": 1}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ],
    )
    async def test_unknown_model_is_not_replaced_by_a_builtin_model(
        self, api: httpx.AsyncClient, path: str, body: dict[str, Any]
    ) -> None:
        answer = await api.post(path, json=body | {"model": "Skywork/Reward\x1b[2J" + "x" * 1000})
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (404, "model")
        detail = answer.json()["detail"]
        assert r"'Skywork/Reward\x1b[2Jxxx" in detail
        assert ("minilm" in detail, len(detail) < 500, detail.isprintable()) == (True, True, True)

    async def test_unknown_service_is_refused_with_available_services(self, api: httpx.AsyncClient) -> None:
        body = {"query": ["x"], "prompts": [""], "labels": ["x"]}
        answer = await api.post("/reward-services/nothing/get_reward", json=body)
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (404, "service")
        assert "minilm" in answer.json()["detail"]


class TestVllm:
    async def test_text_is_classified_in_the_format_that_verl_reads(self, api: httpx.AsyncClient) -> None:
        right = {"service": "quality", "task": "verl", "items": [{"text": TEXTS[0]}]}
        score = (await json_of(api, "/v1/scores", right))["scores"][0]["score"]
        for model in ("quality", "", None):
            said = await json_of(api, "/classify", {"model": model, "input": TEXTS[0]})
            assert said["data"][-1]["probs"][-1] == about(score)
        for name in ("activation", "use_activation", "softmax"):
            said = await json_of(api, "/classify", {"input": TEXTS[0], name: False})
            assert said["data"][-1]["probs"][-1] == about(math.log(score / (1 - score)))
        said = await json_of(api, "/v1/embeddings", {"model": "quality", "input": TEXTS[0]})
        assert said["data"][-1]["embedding"][-1] == about(score)
        said = await json_of(api, "/pooling", {"input": [TEXTS[0], TEXTS[1]], "encoding_format": "base64"})
        assert np.frombuffer(b64decode(said["data"][0]["data"]), "<f4")[-1] == about(score)

    async def test_empty_list_of_inputs_gives_an_empty_list_of_results(self, api: httpx.AsyncClient) -> None:
        for path in ("/classify", "/pooling", "/v1/embeddings"):
            said = await json_of(api, path, {"model": "quality", "input": []})
            assert (said["object"], said["data"]) == ("list", [])

    @pytest.mark.parametrize(
        ("path", "option"),
        [
            ("/classify", {"truncate_prompt_tokens": 16}),
            ("/pooling", {"add_special_tokens": False}),
            ("/v1/embeddings", {"normalize": True}),
            ("/score", {"truncate_prompt_tokens": 16}),
            ("/rerank", {"max_tokens_per_doc": 16}),
        ],
    )
    async def test_option_that_would_change_a_score_is_refused(
        self, api: httpx.AsyncClient, path: str, option: dict[str, Any]
    ) -> None:
        body = {"input": "x", "text_1": "x", "text_2": "y", "query": "x", "documents": ["y"]}
        answer = await api.post(path, json=body | option)
        assert (answer.status_code, [each["field"] for each in answer.json()["errors"]]) == (422, list(option))

    async def test_option_that_changes_no_score_is_accepted(self, api: httpx.AsyncClient) -> None:
        options = {"truncate_prompt_tokens": -1, "add_special_tokens": True, "normalize": None}
        plain = await json_of(api, "/classify", {"model": "quality", "input": TEXTS[0]})
        said = await json_of(api, "/classify", {"model": "quality", "input": TEXTS[0], **options})
        assert said["data"] == plain["data"]

    async def test_embedding_with_fewer_dimensions_is_refused(self, api: httpx.AsyncClient) -> None:
        answer = await api.post("/v1/embeddings", json={"model": "quality", "input": "x", "dimensions": 8})
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "dimensions")

    async def test_rollout_of_32k_tokens_is_truncated_and_scored(self, api: httpx.AsyncClient) -> None:
        """The model scores only the beginning, because a trainer would fail on a refusal."""
        said = await json_of(api, "/classify", {"input": f"{TEXTS[0]} " + "word " * (32 << 10)})
        assert 0 < said["data"][-1]["probs"][-1] < 1

    @pytest.mark.parametrize(
        ("texts", "cut"),
        [
            (["a", "b"], None),
            (["word " * 1000, "a", "b", "word " * 1000], "0,3"),
            (["a", *["word " * 1000] * 60], ",".join(map(str, range(1, 51)))),
        ],
    )
    async def test_response_header_names_the_truncated_texts(
        self, api: httpx.AsyncClient, texts: list[str], cut: str | None
    ) -> None:
        answer = await api.post("/classify", json={"input": texts})
        assert (answer.status_code, answer.headers.get("tangram-truncated")) == (200, cut)

    async def test_text_is_scored_against_each_second_text(self, api: httpx.AsyncClient) -> None:
        body = {"text_1": TEXTS[0], "text_2": [TEXTS[1], TEXTS[2]], "unknown": 1}
        said = await json_of(api, "/score", body)
        assert [each["score"] for each in said["data"]] == [about(COSINES[0, 1]), about(COSINES[0, 2])]
        assert (said["object"], said["model"], said["data"][1]["index"]) == ("list", "relevance", 1)
        said = await json_of(api, "/v1/score", {"query": TEXTS[0], "items": [TEXTS[1]]})
        assert (said["scores"], said["object"]) == ([[about(COSINES[0, 1])]], "scoring")

    async def test_rerank_returns_the_best_documents_first(self, api: httpx.AsyncClient) -> None:
        documents = [TEXTS[at] for at in SHORT]
        said = await json_of(api, "/v1/rerank", {"query": TEXTS[SHORT[0]], "documents": documents, "top_n": 3})
        best = sorted(range(len(SHORT)), key=lambda at: -COSINES[SHORT[0], SHORT[at]])[:3]
        assert [each["index"] for each in said["results"]] == best
        assert said["results"][0]["document"] == {"text": documents[best[0]]}

    async def test_rerank_splits_a_thousand_documents_into_several_actions(self, api: httpx.AsyncClient) -> None:
        documents = [TEXTS[SHORT[at % 8]] for at in range(1000)]
        said = await json_of(api, "/rerank", {"query": TEXTS[SHORT[0]], "documents": documents})
        assert sorted(each["index"] for each in said["results"]) == list(range(1000))

    async def test_unsupported_operation_of_a_service_is_refused(self, api: httpx.AsyncClient) -> None:
        answer = await api.post("/reward-services/minilm/classify", json={"input": "x"})
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "input")
        answer = await api.post("/v1/score", json={"query": "x", "items": ["y"], "label_token_ids": [1]})
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (404, "service")


async def test_rollout_is_verified_and_returned_with_its_reward(api: httpx.AsyncClient) -> None:
    output = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": TEXTS[0]}]}]
    body = {"responses_create_params": {"input": "?"}, "response": {"output": output}, "expected_answer": TEXTS[1]}
    said = await json_of(api, "/reward-services/minilm/verify", body)
    assert said == {**body, "reward": about(COSINES[0, 1])}


async def test_rollout_is_verified_by_the_service_named_in_its_dataset(
    api: httpx.AsyncClient,
) -> None:
    output = [{"type": "message", "content": [{"type": "output_text", "text": TEXTS[0]}]}]
    row = {"responses_create_params": {"input": "?"}, "expected_answer": TEXTS[1], "tangram_service": "minilm"}
    assert await json_of(api, "/seed_session", row) == {}
    answer = await api.post("/ng-rollout/7-3-a1/verify", json={**row, "response": {"output": output}})
    assert answer.json()["reward"] == about(COSINES[0, 1])
    action = answer.headers["tangram-action"].partition(";")[0]
    assert (await api.get(f"/v1/actions/{action}")).json()["trajectory"] == "7-3-a1"
    assert (await api.post("/seed_session", json=row, headers={"authorization": ""})).status_code == 401
