"""TRL's reward function with a fake client: the requested items, and completions without a score."""

import asyncio
import inspect
import pickle
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from arl_tangram.adapters import trl
from arl_tangram.adapters.trl import TangramReward
from arl_wire.errors import Internal, NotScored, RewardServiceNotFound, Unavailable
from arl_wire.scores import MAX_CHARACTERS, MAX_ITEMS, ItemError, Score, ScoreItem


class Client:
    """A fake client that scores a text by its length."""

    fault: Exception | None = None
    asked: list[Sequence[ScoreItem]]

    def __init__(self) -> None:
        self.asked = []
        self.errors: dict[str, str] = {}
        self.trajectories: list[str | None] = []

    def __call__(self, url: str | None, api_key: str | None) -> "Client":
        return self

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def score(self, service: str, items: Sequence[ScoreItem], **options: Any) -> list[Score]:
        self.asked.append(items)
        self.trajectories.append(options.get("trajectory"))
        if self.fault is not None:
            raise self.fault
        return [self._scored(item) for item in items]

    def _scored(self, item: ScoreItem) -> Score:
        if code := self.errors.get(item.text or ""):
            return Score(error=ItemError(code=code, message="why"))
        return Score(score=len(item.text or ""))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    client = Client()
    monkeypatch.setattr(trl, "AsyncTangram", client)
    return client


async def rewards_of(*completions: str, **columns: Any) -> list[float | None]:
    return await TangramReward("quality", trajectory="rollout")([""] * len(completions), completions, **columns)


async def test_score_calls_are_limited_by_items_and_characters(client: Client) -> None:
    completions = ["x" * 5000] * 256 + ["y"] * 600
    names = ["long"] * 256 + ["short"] * 600
    assert await rewards_of(*completions, rollout=names) == [len(each) for each in completions]
    assert all(len(each) <= MAX_ITEMS for each in client.asked)
    assert all(sum(item.characters for item in each) <= MAX_CHARACTERS for each in client.asked)
    assert len(client.asked) == 2 + 3


@pytest.mark.parametrize(
    ("with_prompt", "item"),
    [
        (False, {"text": "4"}),
        (True, {"text": "2 + 2?4"}),
        ("apart", {"text": "4", "prompt": "2 + 2?"}),
    ],
)
async def test_prompt_is_omitted_prefixed_or_sent_separately(
    client: Client, with_prompt: Any, item: dict[str, str]
) -> None:
    await TangramReward("judge", with_prompt=with_prompt)([[{"role": "user", "content": "2 + 2?"}]], ["4"])
    assert [each.model_dump(exclude_none=True) for [each] in client.asked] == [item]


async def test_too_long_text_has_no_score_and_others_do(client: Client) -> None:
    completions = ["four", "x" * (MAX_CHARACTERS + 1), "five5"]
    assert await rewards_of(*completions, rollout=["a", "b", "a"]) == [4.0, None, 5.0]
    assert len(client.asked) == 1
    reward = TangramReward("quality", unscored=-1.0)
    assert await reward([""] * 3, completions) == [4.0, -1.0, 5.0]


async def test_too_long_reference_gives_none_instead_of_unscored_value(client: Client) -> None:
    reward = TangramReward("exact", reference="answer", unscored=-1.0)
    long = "x" * (MAX_CHARACTERS + 1)
    assert await reward([""] * 2, ["four", long], answer=[long, "4"]) == [None, -1.0]


async def test_invalid_characters_are_replaced_before_scoring(client: Client) -> None:
    assert await rewards_of("a\0b", "\ud83d", rollout=["a", "a"]) == [3.0, 1.0]
    assert [item.text for [*items] in client.asked for item in items] == ["a\ufffdb", "\ufffd"]


async def test_item_fault_gets_unscored_value_and_other_errors_none(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    client.errors = {"": "empty_text", "x": "restore_failed", "y": "bad_reference"}
    reward = TangramReward("quality", unscored=-2.0)
    assert await reward([""] * 4, ["", "x", "y", "four"]) == [-2.0, None, None, 4.0]
    assert "3 of 4 completions have no score" in caplog.text
    assert "restore_failed 1" in caplog.text


async def test_service_that_cannot_score_raises_not_scored(client: Client) -> None:
    client.errors = {"x": "verifier_missing"}
    with pytest.raises(NotScored, match="verifier_missing"):
        await TangramReward("math", unscored=0.0)([""], ["x"])


def test_reward_is_a_coroutine_function_and_can_be_pickled() -> None:
    reward = TangramReward("quality", reference="answer", api_key="tk_secret")
    for each in (reward, pickle.loads(pickle.dumps(reward))):
        assert inspect.iscoroutinefunction(each)
        assert asyncio.iscoroutinefunction(each)
        assert (each.__name__, each.func.__name__) == ("tangram_quality", "tangram_quality")
        assert each.scorer.reference == "answer"
    assert "tk_secret" not in repr(reward)


async def test_tool_message_is_not_used_as_answer(client: Client) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{}]}
    turns = [call, {"role": "tool", "content": "Paris"}, {"role": "assistant", "content": "I give up"}]
    await TangramReward("exact", reference="answer")([""], [turns], answer=["Paris"])
    assert [item.text for [item] in client.asked] == ["I give up"]


async def test_messages_keep_their_roles(client: Client) -> None:
    prompt = [{"role": "system", "content": "s"}, {"role": "user", "content": "2 + 2?"}]
    await TangramReward("rm", with_prompt="messages")([prompt], ["4"])
    [[item]] = client.asked
    assert [(each.role, each.content) for each in item.messages or []] == [
        ("system", "s"),
        ("user", "2 + 2?"),
        ("assistant", "4"),
    ]


async def test_text_too_long_with_its_prompt_is_none(client: Client) -> None:
    half = "x" * (MAX_CHARACTERS // 2)
    rewards = TangramReward("judge", with_prompt="apart")
    assert await rewards([half, half], [half + "x", half]) == [None, float(len(half))]


@pytest.mark.parametrize("fault", [Unavailable("later"), Internal("trouble")])
async def test_service_outage_gives_none_unless_raising_is_chosen(client: Client, fault: Exception) -> None:
    client.fault = fault
    assert await rewards_of("a", "b", rollout=["a", "b"]) == [None, None]
    with pytest.raises(type(fault)):
        await TangramReward("quality", on_trouble="raise")([""], ["a"])


async def test_missing_reward_service_raises_error(client: Client) -> None:
    client.fault = RewardServiceNotFound("no such service")
    with pytest.raises(RewardServiceNotFound):
        await rewards_of("a", rollout=["a"])


async def test_completion_without_reference_is_none_and_not_sent(client: Client) -> None:
    reward = TangramReward("exact", reference="answer")
    assert await reward(["", ""], ["None", "four"], answer=[None, "4"]) == [None, 4.0]
    assert [[item.reference for item in items] for items in client.asked] == [["4"]]
    assert await reward([""], ["None"], answer=[None]) == [None]
    assert len(client.asked) == 1


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("4", "4"),
        ("", ""),
        (42, "42"),
        (0.5, "0.5"),
        (True, "true"),
        (["a", "é"], '["a", "é"]'),
        ({"a": None}, '{"a": null}'),
        (np.int64(42), "42"),
        (np.array([1, 2]), "[1, 2]"),
        ({"a": np.array([1, 2])}, '{"a": [1, 2]}'),
        (np.array(["a"]), '["a"]'),
        (Decimal("4.20"), "4.20"),
        ([Decimal("4.20")], '["4.20"]'),
    ],
)
async def test_non_text_reference_is_sent_as_json(client: Client, answer: Any, reference: str) -> None:
    await TangramReward("json", reference="answer")([""], ["x"], answer=[answer])
    assert [each.reference for [each] in client.asked] == [reference]


async def test_multi_part_messages_are_joined_texts(client: Client) -> None:
    parts = [{"type": "image", "text": None}, {"type": "text", "text": "2 + "}, {"type": "text", "text": "2?"}]
    prompt = [{"role": "user", "content": parts}]
    answer = {"role": "assistant", "content": [{"type": "text", "text": "4"}]}
    await TangramReward("judge", with_prompt="apart")([prompt], [[answer, {"role": "tool", "content": None}]])
    assert [(each.prompt, each.text) for [each] in client.asked] == [("2 + 2?", "4")]


@pytest.mark.parametrize("named", [{"reference": "answr"}, {"trajectory": "answr"}])
async def test_missing_column_raises_error_that_lists_columns(client: Client, named: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"'answr'.*answer, solution"):
        await TangramReward("exact", **named)([""], ["x"], solution=["y"], answer=["y"])  # type: ignore[arg-type]
    assert client.asked == []


async def test_unnamed_rollout_has_no_trajectory(client: Client) -> None:
    assert await rewards_of("a", "b", rollout=[None, "None"]) == [1.0, 1.0]
    assert client.trajectories == [None, "None"]
