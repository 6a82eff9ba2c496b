"""Tokenization of texts, compared with the library's result for the whole text."""

import string
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from arl_gpu.catalog.service_files import installed_services
from arl_gpu.models.encoders.tokenizer import TokenizedText, WordPieceTokenizer

DIRECTORY = next(iter(installed_services(["minilm"]))).directory

STRANGE = ["中文", "café", "café", "\xa0", "\x0b", "\x1c", "\x00", "\x7f", "�", "\u2028"]
PLAIN = ["time", "Year", "unbelievably", "x1", "42", "\\frac{1}{2}", "don't", "[SEP]", "[sep]", "[CLS]"]
PIECES = st.sampled_from([*STRANGE, *PLAIN, "a" * 65, "b" * 101])
TEXTS = st.lists(PIECES | st.sampled_from(" \t\n\r") | st.text(string.printable, max_size=4) | st.text(max_size=3)).map(
    "".join
)


@pytest.fixture(scope="module")
def pieces() -> WordPieceTokenizer:
    return WordPieceTokenizer(DIRECTORY)


@pytest.fixture(scope="module")
def library() -> Tokenizer:
    library = Tokenizer.from_file(str(DIRECTORY / "tokenizer.json"))
    library.no_padding()
    library.no_truncation()
    return library


def by_library(library: Tokenizer, texts: Sequence[str], most: int) -> list[TokenizedText]:
    found = [library.encode(text).ids for text in texts]
    return [TokenizedText((*ids[:-1][: most - 1], ids[-1]), len(ids) > most) for ids in found]


@given(texts=st.lists(TEXTS, max_size=4))
def test_tokens_of_arbitrary_texts_equal_those_of_the_library(
    pieces: WordPieceTokenizer, library: Tokenizer, texts: list[str]
) -> None:
    assert pieces.tokenize(texts) == by_library(library, texts, pieces.max_tokens)


@pytest.mark.parametrize("count", [253, 254, 255, 300, 5000])
def test_long_text_is_truncated_as_in_the_library(pieces: WordPieceTokenizer, library: Tokenizer, count: int) -> None:
    texts = ["time " * count, "unbelievably, " * count]
    assert pieces.tokenize(texts) == by_library(library, texts, pieces.max_tokens)
