"""Texts to tokens of words that are remembered, beside the library's own."""

import json
import string
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from arl_gpu.encoders import words
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


def test_few_words_are_kept_and_none_that_is_long(library: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "_MOST_WORDS", MOST)
    kept = Words(library, said())
    for number in range(10 * MOST):
        text = f"word{number} and time"
        assert kept.ids(text) == library.encode(text, add_special_tokens=False).ids
    assert kept.ids("and time " + "x" * 65) is None
    assert (kept._ids_of.cache_info().currsize, kept._ids_of.cache_info().misses) == (MOST, 10 * MOST + 3)


def test_where_case_counts_it_does(library: Tokenizer) -> None:
    cased = said() | {"normalizer": said()["normalizer"] | {"lowercase": False}}
    kept = Words(Tokenizer.from_str(json.dumps(cased)), cased)
    assert kept.ids("Time") != kept.ids("time") == library.encode("time", add_special_tokens=False).ids


def test_other_tokenizers_split_by_themselves() -> None:
    assert Words.are_split_alone(bert := said())
    assert not Words.are_split_alone(bert | {"normalizer": None})
    assert not Words.are_split_alone(bert | {"pre_tokenizer": {"type": "Whitespace"}})
    assert not Words.are_split_alone(bert | {"model": {"type": "Unigram"}})
    assert not Words.are_split_alone(bert | {"normalizer": bert["normalizer"] | {"clean_text": False}})
    assert not Words.are_split_alone(bert | {"added_tokens": [bert["added_tokens"][0] | {"normalized": True}]})
