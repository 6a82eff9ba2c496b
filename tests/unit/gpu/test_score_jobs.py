"""Estimated cost of scoring a text before its tokens are counted."""

import json

import pytest

from arl_gpu.queue.score_jobs import DEFAULT_MAX_TOKENS, item_cost, text_cost
from arl_store.values import storable, storable_json


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 2), ("abcd" * 10, 12), ("日本" * 10, 22), ("日本 abcd", 5), ("日" * 10_000, DEFAULT_MAX_TOKENS)],
)
def test_text_cost_counts_four_ascii_characters_as_one_token(text: str, tokens: int) -> None:
    assert text_cost(text) == tokens


def test_text_that_postgres_rejects_is_replaced() -> None:
    assert storable("a\0b\ud800c😀") == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c😀"
    entries = [{"score": 0.1, "details": {"a\0": ["\udfff", None, "😀"]}}, {"error": {"message": "\\u0000"}}]
    kept = json.loads(storable_json(json.dumps(entries)) or "")
    assert kept[0] == {
        "score": 0.1,
        "details": {"a\N{REPLACEMENT CHARACTER}": ["\N{REPLACEMENT CHARACTER}", None, "😀"]},
    }
    assert kept[1] == entries[1]


def test_item_cost_is_capped_by_service_limit() -> None:
    assert item_cost({"text": "日" * 10_000}, 4096) == 4096


def test_requested_logprobs_add_to_item_cost() -> None:
    tokens = {"token_ids": [5] * 32}
    assert [item_cost(tokens | {"top_logprobs": top}) for top in (0, 1, 16, 128)] == [32, 34, 64, 288]
    assert item_cost({"text": "abcd" * 10, "top_logprobs": 16}) == 24
    assert item_cost(tokens | {"label_token_ids": [5] * 160}) == 42
