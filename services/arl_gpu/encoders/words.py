"""Tokens of words that were met before: most of a text is, and its tokenizer need not be asked again.

BERT's tokenizer (Devlin et al. 2018) parts a text at white space and around punctuation, and splits every word by
itself: the tokens of a text are those of its words. Of plain ASCII that is used here; the library splits all other
text, and every new word.
"""

import re
from functools import lru_cache
from itertools import chain

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

__all__ = ["Words"]

_PLAIN = re.compile(r"[ -~\t\n\r]*")
"""Of other control characters most are removed, and join what they stood between."""
_WORD = re.compile(r"[0-9A-Za-z]+|[!-/:-@\[-`{-~]")
_LONGEST_WORD = 20
MOST_WORDS = 1 << 14
"""With their tokens 10 MiB at most."""


class Words:
    """Those of a tokenizer by which they `are_split_alone`; `most_words` of them are kept."""

    def __init__(self, tokenizer: Tokenizer, most_words: int = MOST_WORDS) -> None:
        self._model = tokenizer.model
        self._has_case = not tokenizer.normalizer.lowercase
        self._special = [each.content for each in tokenizer.get_added_tokens_decoder().values()]
        self._ids_of = lru_cache(most_words)(self._split)

    @staticmethod
    def are_split_alone(tokenizer: Tokenizer) -> bool:
        return (
            isinstance(tokenizer.normalizer, BertNormalizer)
            and tokenizer.normalizer.clean_text
            and isinstance(tokenizer.pre_tokenizer, BertPreTokenizer)
            and isinstance(tokenizer.model, WordPiece)
            and not any(each.normalized for each in tokenizer.get_added_tokens_decoder().values())
        )

    def ids(self, text: str) -> list[int] | None:
        """Without special tokens; None for a text that the library has to split."""
        if _PLAIN.fullmatch(text) is None or any(special in text for special in self._special):
            return None
        words = _WORD.findall(text)
        if max(map(len, words), default=0) > _LONGEST_WORD:
            return None
        return list(chain.from_iterable(map(self._ids_of, words)))

    def _split(self, word: str) -> tuple[int, ...]:
        return tuple(token.id for token in self._model.tokenize(word if self._has_case else word.lower()))
