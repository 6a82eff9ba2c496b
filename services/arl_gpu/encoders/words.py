"""Tokens of words that were met before: most of a text is, and its tokenizer need not be asked again.

BERT's tokenizer (Devlin et al. 2018) parts a text at white space and around punctuation, and splits every word by
itself: the tokens of a text are those of its words. Of plain ASCII that is used here; the library splits all other
text, and every new word.
"""

import re
from collections.abc import Mapping, Sequence
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
    """Those of one tokenizer, by which they `are_split_alone`; it pads nothing and cuts no single word."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = [each.content for each in tokenizer.get_added_tokens_decoder().values()]
        self._known: dict[str, list[int]] = {}

    @staticmethod
    def are_split_alone(said: Mapping[str, Any]) -> bool:
        """By the tokenizer of this tokenizer.json."""
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
        words = _WORD.findall(text)
        try:
            found = [self._known[word] for word in words]
        except KeyError:
            if not self._learn(words):
                return None
            found = [self._known[word] for word in words]
        return list(chain.from_iterable(found))

    def _learn(self, words: Sequence[str]) -> bool:
        """Whether all of them are known now."""
        distinct = set(words)
        if max(map(len, distinct)) > _LONGEST_WORD or len(distinct) > _MOST_WORDS:
            return False
        fresh = list(distinct - self._known.keys())
        if len(self._known) + len(fresh) > _MOST_WORDS:
            self._known.clear()
            fresh = list(distinct)
        for word, found in zip(fresh, self._tokenizer.encode_batch_fast(fresh, add_special_tokens=False), strict=True):
            self._known[word] = found.ids
        return True
