"""Tokens of words that were met before: most of a text is, and its tokenizer need not be asked again.

BERT's tokenizer (Devlin et al. 2018) parts a text at white space and around punctuation, and splits every word by
itself: the tokens of a text are those of its words. Of plain ASCII that is used here; the library splits all other
text, and every new word.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import chain
from typing import Any

from tokenizers import Tokenizer

__all__ = ["Words"]

_PLAIN = re.compile(r"[ -~\t\n\r]*")
"""Of other control characters most are removed, and join what they stood between."""
_WORD = re.compile(r"[0-9A-Za-z]+|[!-/:-@\[-`{-~]")
_MOST_WORDS, _LONGEST_WORD = 1 << 15, 64
"""With their tokens some 10 MiB."""


class Words:
    """Those of one tokenizer, by which they `are_split_alone`; `said` is its tokenizer.json."""

    def __init__(self, tokenizer: Tokenizer, said: Mapping[str, Any]) -> None:
        self._model = tokenizer.model
        self._has_case = not said["normalizer"]["lowercase"]
        self._special = [each["content"] for each in said["added_tokens"]]
        self._ids_of = lru_cache(_MOST_WORDS)(self._split)

    @staticmethod
    def are_split_alone(said: Mapping[str, Any]) -> bool:
        parts = [(said.get(part) or {}).get("type") for part in ("normalizer", "pre_tokenizer", "model")]
        return (
            parts == ["BertNormalizer", "BertPreTokenizer", "WordPiece"]
            and said["normalizer"]["clean_text"]
            and not any(each["normalized"] for each in said["added_tokens"])
        )

    def ids(self, text: str) -> list[int] | None:
        """Without special tokens; None for a text that the library has to split."""
        if _PLAIN.fullmatch(text) is None or any(special in text for special in self._special):
            return None
        try:
            return list(chain.from_iterable(map(self._ids_of, _WORD.findall(text))))
        except _TooLong:
            return None

    def _split(self, word: str) -> tuple[int, ...]:
        if len(word) > _LONGEST_WORD:
            raise _TooLong  # which is not kept
        return tuple(token.id for token in self._model.tokenize(word if self._has_case else word.lower()))


class _TooLong(Exception):
    """A word that is none, and would take room."""
