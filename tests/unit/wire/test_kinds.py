"""Required and accepted item fields of each reward service kind."""

from typing import Any

import pytest
from pydantic import ValidationError

from arl_wire.reward_services.kinds import FORMS_BY_KIND, item_form_error
from arl_wire.scores import MAX_CHARACTERS, ScoreItem

PAIR = {"text": "a", "reference": "b"}
MESSAGES = {"messages": [{"role": "user", "content": "hello"}]}
TOKENS = {"token_ids": [1, 2]}


@pytest.mark.parametrize(
    ("kind", "item", "field"),
    [
        ("similarity", {"text": "a"}, "reference"),
        ("similarity", {}, "text"),
        ("similarity", PAIR | TOKENS, "token_ids"),
        ("classifier", PAIR, "reference"),
        ("classifier", MESSAGES, "text"),
        ("sequence-classifier", {"text": "a"} | MESSAGES, "messages"),
        ("math", {"reference": "4"}, "text"),
    ],
)
def test_field_that_kind_does_not_accept_is_named(kind: str, item: dict[str, Any], field: str) -> None:
    refusal = item_form_error(kind, [ScoreItem.model_validate(each) for each in (_good(kind), item)])
    assert refusal is not None
    assert refusal.errors[0].field == f"items.1.{field}"
    assert f"a service of kind `{kind}` takes " in refusal.detail
    assert (" together with " in refusal.detail) is (field in item and len(item) > 1)


@pytest.mark.parametrize("kind", FORMS_BY_KIND)
def test_valid_item_of_each_kind_is_accepted(kind: str) -> None:
    assert item_form_error(kind, [ScoreItem.model_validate(_good(kind))]) is None


def test_tokens_and_messages_count_as_characters() -> None:
    assert ScoreItem.model_validate(TOKENS).characters == 8
    assert ScoreItem.model_validate(MESSAGES).characters == 5


@pytest.mark.parametrize("field", ["text", "reference", "prompt"])
def test_single_text_may_use_the_whole_character_limit(field: str) -> None:
    assert ScoreItem.model_validate({field: "x" * MAX_CHARACTERS}).characters == MAX_CHARACTERS
    with pytest.raises(ValidationError):
        ScoreItem.model_validate({field: "x" * (MAX_CHARACTERS + 1)})


def _good(kind: str) -> dict[str, Any]:
    everything = PAIR | MESSAGES | TOKENS
    forms = FORMS_BY_KIND[kind] or (("text",),)
    return {name: everything[name] for name in forms[0]}
