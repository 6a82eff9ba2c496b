"""The reward function of TRL, with a client that stands in for a system: what is asked for, and what is None."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from arl_tangram.adapters import trl
from arl_tangram.adapters.trl import TangramReward
from arl_wire.errors import Internal, ServiceUnknown, Unavailable
from arl_wire.scores import MAX_CHARACTERS, MAX_ITEMS, Score, ScoreItem


class Client:
    """A score is the length of its text."""

    fault: Exception | None = None
    asked: list[Sequence[ScoreItem]]

    def __init__(self) -> None:
        self.asked = []
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
        return [Score(score=len(item.text or "")) for item in items]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    client = Client()
    monkeypatch.setattr(trl, "AsyncTangram", client)
    return client


async def rewards_of(*completions: str, **columns: Any) -> list[float | None]:
    return await TangramReward("quality", trajectory="rollout")([""] * len(completions), completions, **columns)


async def test_calls_are_bounded_by_items_and_by_characters(client: Client) -> None:
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
async def test_a_prompt_is_left_out_or_before_its_completion_or_beside_it(
    client: Client, with_prompt: Any, item: dict[str, str]
) -> None:
    await TangramReward("judge", with_prompt=with_prompt)([[{"role": "user", "content": "2 + 2?"}]], ["4"])
    assert [each.model_dump(exclude_none=True) for [each] in client.asked] == [item]


async def test_a_text_that_cannot_be_scored_is_none_and_the_others_have_their_scores(client: Client) -> None:
    completions = ["\0", "four", "x" * (MAX_CHARACTERS + 1), "\ud800", "five5"]
    assert await rewards_of(*completions, rollout=["a", "a", "b", "b", "a"]) == [
        None,
        4.0,
        None,
        None,
        5.0,
    ]
    assert len(client.asked) == 1


async def test_a_text_that_is_too_long_together_with_its_prompt_is_none(client: Client) -> None:
    half = "x" * (MAX_CHARACTERS // 2)
    rewards = TangramReward("judge", with_prompt="apart")
    assert await rewards([half, half], [half + "x", half]) == [None, float(len(half))]


@pytest.mark.parametrize("fault", [Unavailable("later"), Internal("trouble")])
async def test_trouble_of_the_services_is_none(client: Client, fault: Exception) -> None:
    client.fault = fault
    assert await rewards_of("a", "b", rollout=["a", "b"]) == [None, None]


async def test_a_service_that_is_not_there_is_an_error(client: Client) -> None:
    client.fault = ServiceUnknown("no such service")
    with pytest.raises(ServiceUnknown):
        await rewards_of("a", rollout=["a"])


async def test_a_completion_whose_answer_is_missing_is_none_and_is_not_asked_for(client: Client) -> None:
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
async def test_an_answer_that_is_no_text_is_compared_as_json(client: Client, answer: Any, reference: str) -> None:
    await TangramReward("json", reference="answer")([""], ["x"], answer=[answer])
    assert [each.reference for [each] in client.asked] == [reference]


async def test_turns_in_parts_are_their_texts(client: Client) -> None:
    parts = [{"type": "image", "text": None}, {"type": "text", "text": "2 + "}, {"type": "text", "text": "2?"}]
    prompt = [{"role": "user", "content": parts}]
    answer = {"role": "assistant", "content": [{"type": "text", "text": "4"}]}
    await TangramReward("judge", with_prompt="apart")([prompt], [[answer, {"role": "tool", "content": None}]])
    assert [(each.prompt, each.text) for [each] in client.asked] == [("2 + 2?", "4\n")]


@pytest.mark.parametrize("named", [{"reference": "answr"}, {"trajectory": "answr"}])
async def test_a_column_that_is_not_there_is_an_error_that_names_those_that_are(
    client: Client, named: dict[str, str]
) -> None:
    with pytest.raises(ValueError, match=r"'answr'.*answer, solution"):
        await TangramReward("exact", **named)([""], ["x"], solution=["y"], answer=["y"])  # type: ignore[arg-type]
    assert client.asked == []


async def test_a_rollout_without_a_name_has_none(client: Client) -> None:
    assert await rewards_of("a", "b", rollout=[None, "None"]) == [1.0, 1.0]
    assert client.trajectories == [None, "None"]
