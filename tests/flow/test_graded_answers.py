"""Test that verifiers behind trainers' protocols grade the policy's own answer and nothing else."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from support.postgres import Databases
from support.system import System, running_system


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    async with running_system(owner_url, driver="landlock", cores=2) as system:
        yield system
    await databases.drop(owner_url)


async def json_of(api: httpx.AsyncClient, path: str, body: Any) -> Any:
    answer = await api.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_prompt_that_was_shortened_and_decoded_does_not_lose_the_reward(api: httpx.AsyncClient) -> None:
    prompt = "Context that a limit removes. " * 20 + "<|user|>What is 6 times 7? Give the number.<|assistant|>\n"
    queries = ["<s>" + prompt + "42", prompt[-60:] + "42", "<pad><pad><s><s> " + prompt[-70:] + "42</s>"]
    body = {"query": queries, "prompts": [prompt] * 3, "labels": ["42"] * 3}
    assert (await json_of(api, "/reward-services/exact/get_reward", body))["rewards"] == [1.0] * 3


async def test_slime_accepts_contents_in_parts_and_null(api: httpx.AsyncClient) -> None:
    turns = [{"role": "user", "content": [{"type": "text", "text": "Q"}]}, {"role": "assistant", "content": None}]
    calls = [
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "tool", "content": "41", "name": "f"},
    ]
    sample = {"prompt": [*turns, *calls], "response": "42", "label": "42"}
    assert await json_of(api, "/reward-services/exact/slime/reward", sample) == 1.0


ASSISTANT = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "42"}]}
THANKS = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "thanks, 42 it is"}]}
WRONG = {"role": "assistant", "content": "41"}
REASONING = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "42"}]}
TOOL_CALL = {"type": "function_call", "name": "f", "arguments": "42", "call_id": "1"}


@pytest.mark.parametrize(
    ("output", "reward"),
    [
        ([ASSISTANT], 1.0),
        ([ASSISTANT, THANKS], 1.0),
        ([WRONG, {**THANKS, "content": "42"}], 0.0),
        ([WRONG, {"role": "user", "content": "42"}, REASONING], 0.0),
        ([{"role": "assistant", "content": "42"}], 1.0),
        ([WRONG, {"role": "assistant", "content": ["4", {"type": "text", "text": "2"}]}], 1.0),
        ([ASSISTANT, WRONG], 0.0),
        ([{"role": "system", "content": "42"}, {"role": "tool", "content": "42"}, TOOL_CALL], 0.0),
        ([ASSISTANT, TOOL_CALL, {"type": "function_call_output", "call_id": "1", "output": "41"}], 1.0),
        ([{"role": "assistant", "content": None}], 0.0),
    ],
)
async def test_only_the_last_message_of_the_assistant_is_verified(
    api: httpx.AsyncClient, output: list[Any], reward: float
) -> None:
    body = {"response": {"output": output}, "expected_answer": "42"}
    assert (await json_of(api, "/reward-services/exact/verify", body))["reward"] == reward
