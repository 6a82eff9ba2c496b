"""Texts to tokens of words that are remembered, beside the library's own."""

import json
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from arl_gpu.encoders.tokens import Tokens, WordPieces
from arl_gpu.encoders.words import Words
from arl_gpu.services import available

DIRECTORY = next(iter(available(["minilm"]))).directory
MOST = 16

STRANGE = ["中文", "café", "café", "\xa0", "\x0b", "\x1c", "\x00", "\x7f", "�", "\u2028"]
PLAIN = ["time", "Year", "unbelievably", "x1", "42", "\\frac{1}{2}", "don't", "[SEP]", "[sep]", "[CLS]"]
PIECES = st.sampled_from([*STRANGE, *PLAIN, "a" * 65, "b" * 101])
TEXTS = st.lists(PIECES | st.sampled_from(" \t\n\r") | st.text(string.printable, max_size=4) | st.text(max_size=3)).map(
    "".join
)


@pytest.fixture(scope="module")
def pieces() -> WordPieces:
    return WordPieces(DIRECTORY)


@pytest.fixture(scope="module")
def library() -> Tokenizer:
    library = Tokenizer.from_file(str(DIRECTORY / "tokenizer.json"))
    library.no_padding()
    library.no_truncation()
    return library


def said() -> dict[str, Any]:
    whole: dict[str, Any] = json.loads((DIRECTORY / "tokenizer.json").read_bytes())
    return whole


def a_tokenizer(**changes: Any) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(said() | changes))


def by_library(library: Tokenizer, texts: Sequence[str], most: int) -> list[Tokens]:
    found = [library.encode(text).ids for text in texts]
    return [Tokens((*ids[:-1][: most - 1], ids[-1]), len(ids) > most) for ids in found]


@given(texts=st.lists(TEXTS, max_size=4))
def test_they_are_the_librarys_whatever_the_texts_are(pieces: WordPieces, library: Tokenizer, texts: list[str]) -> None:
    assert pieces.split(texts) == by_library(library, texts, pieces.max_tokens)


@pytest.mark.parametrize("each", [*map(chr, range(0x180)), "\u2003", "\u3000", "\u00ad", "\u200b"])
def test_no_character_joins_or_parts_words_otherwise(pieces: WordPieces, library: Tokenizer, each: str) -> None:
    texts = [f"life{each}time", f"{each}lifetime", f"life {each} time{each}"]
    assert pieces.split(texts) == by_library(library, texts, pieces.max_tokens)


@pytest.mark.parametrize("count", [253, 254, 255, 300, 5000])
def test_a_long_text_is_cut_where_the_library_cuts_it(pieces: WordPieces, library: Tokenizer, count: int) -> None:
    texts = ["time " * count, "unbelievably, " * count]
    assert pieces.split(texts) == by_library(library, texts, pieces.max_tokens)


def test_few_words_are_kept_and_a_text_with_a_long_one_is_the_librarys(library: Tokenizer) -> None:
    kept = Words(library, most_words=MOST)
    for number in range(10 * MOST):
        text = f"word{number} and time"
        assert kept.ids(text) == library.encode(text, add_special_tokens=False).ids
    assert kept.ids("and time " + "x" * 21) is None
    assert (kept._ids_of.cache_info().currsize, kept._ids_of.cache_info().misses) == (MOST, 10 * MOST + 2)


def test_where_case_counts_it_does(library: Tokenizer) -> None:
    kept = Words(a_tokenizer(normalizer=said()["normalizer"] | {"lowercase": False}))
    assert kept.ids("Time") != kept.ids("time") == library.encode("time", add_special_tokens=False).ids


OTHERS: list[dict[str, Any]] = [
    {"normalizer": None},
    {"normalizer": {"type": "Lowercase"}},
    {"normalizer": said()["normalizer"] | {"clean_text": False}},
    {"pre_tokenizer": {"type": "Whitespace"}},
    {"model": {"type": "WordLevel", "vocab": {"[UNK]": 100}, "unk_token": "[UNK]"}},
    {"added_tokens": [said()["added_tokens"][0] | {"normalized": True}]},
]


@pytest.mark.parametrize("change", OTHERS)
def test_other_tokenizers_split_by_themselves(change: dict[str, Any]) -> None:
    assert Words.are_split_alone(a_tokenizer())
    assert not Words.are_split_alone(a_tokenizer(**change))


def test_special_tokens_are_put_where_the_tokenizer_puts_them(tmp_path: Path) -> None:
    processor = said()["post_processor"]
    first, text, last = processor["single"]
    moved = a_tokenizer(post_processor=processor | {"single": [first, last, text]})
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 256}')
    moved.save(str(tmp_path / "tokenizer.json"))
    moved.no_padding()
    moved.no_truncation()
    assert WordPieces(tmp_path).split(["time and time"]) == [Tokens(tuple(moved.encode("time and time").ids), False)]
