"""What scoring a text is taken to cost before anybody counts its tokens."""

import pytest

from arl_gpu.jobs import MAX_TOKENS, cost_of


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 2), ("abcd" * 10, 12), ("日本" * 10, 22), ("日本 abcd", 5), ("日" * 10_000, MAX_TOKENS)],
)
def test_ascii_is_four_characters_a_token_and_the_rest_one(text: str, tokens: int) -> None:
    assert cost_of(text) == tokens
