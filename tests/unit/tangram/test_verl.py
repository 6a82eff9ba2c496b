"""verl's reward function with a fake client."""

import inspect
from collections.abc import Sequence
from typing import Any

import pytest

from arl_tangram.adapters import verl
from arl_tangram.adapters.verl import compute_score
from arl_wire.errors import NotScored
from arl_wire.scores import ItemError, Score, ScoreItem


class Client:
    """A fake client that scores 1 if the text equals its reference."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ScoreItem, dict[str, Any]]] = []

    def __call__(self, url: str | None, api_key: str | None) -> "Client":
        return self

    async def score(self, service: str, items: Sequence[ScoreItem], **options: Any) -> list[Score]:
        self.asked += [(service, item, options) for item in items]
        return [self._scored(item) for item in items]

    def _scored(self, item: ScoreItem) -> Score:
        if not item.text:
            return Score(error=ItemError(code="empty_text", message="why"))
        if item.reference == "?":
            return Score(error=ItemError(code="bad_reference", message="why"))
        return Score(score=float(item.text == item.reference))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    client = Client()
    monkeypatch.setattr(verl, "_client", client)
    return client


def test_compute_score_is_a_coroutine_function() -> None:
    assert inspect.iscoroutinefunction(compute_score)


async def test_sample_is_scored_with_verl_arguments(client: Client) -> None:
    said = await compute_score(
        data_source="gsm8k", solution_str="42\0", ground_truth=42, extra_info={"index": 7, "question": "6 * 7?"},
        reward_router_address="h:1", reward_model_tokenizer=None,
        service="judge", prompt="question", trajectory="index",
    )  # fmt: skip
    assert said == {"score": 0.0, "unscored": 0.0}
    [(service, item, options)] = client.asked
    assert (service, item.text, item.reference, item.prompt) == ("judge", "42\ufffd", "42", "6 * 7?")
    assert (options["task"], options["trajectory"]) == ("verl", "7")


async def test_service_without_comparison_gets_no_ground_truth(client: Client) -> None:
    await compute_score("x", "text", "truth", service="rm", compares=False)
    assert client.asked[0][1].reference is None


async def test_unscored_text_raises_error_or_gets_chosen_value(client: Client) -> None:
    with pytest.raises(NotScored, match="empty_text"):
        await compute_score("x", "", "42", service="math")
    assert await compute_score("x", "", "42", service="math", unscored=-1.0) == {"score": -1.0, "unscored": 1.0}
    with pytest.raises(NotScored, match="bad_reference"):
        await compute_score("x", "42", "?", service="math", unscored=-1.0)


async def test_unknown_option_raises_type_error(client: Client) -> None:
    with pytest.raises(TypeError, match="servce"):
        await compute_score("x", "42", "42", servce="math")
