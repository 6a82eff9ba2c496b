"""Invalid characters in a trainer's JSON, and the text that the gateway reads from it."""

import asyncio
import json
import re

from hypothesis import given
from hypothesis import strategies as st

from arl_gateway.compat.blocking_score import OFFLOAD_BYTES, CompatRoute

NO_CHARACTER = re.compile("[\0\ud800-\udfff]")
PIECES = ["\\", "\0", "\ud83d", "\ude00", "\U0001f600", "u0000", "ud83d", "u", "a", '"', "\n", "é"]


def read(content: bytes) -> bytes:
    return asyncio.run(CompatRoute.prepare_body(content))


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_invalid_characters_are_replaced_and_others_are_unchanged(text: str) -> None:
    wanted = NO_CHARACTER.sub("\ufffd", json.loads(json.dumps(text)))  # as two halves that meet are a character
    assert json.loads(read(json.dumps(text).encode())) == wanted


def test_large_body_is_cleaned_like_small_body() -> None:
    text = "\n\\" * OFFLOAD_BYTES + "\ud800\U0001f600"
    assert json.loads(read(json.dumps(text).encode())) == text.replace("\ud800", "\ufffd")
