"""Conversion of text to token ids as in sentence-transformers: lower case, special tokens, truncation."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

__all__ = ["TokenizedText", "WordPieceTokenizer"]

SPECIAL_TOKENS = 2
"""Number of special tokens around every text: [CLS] and [SEP]."""
MAX_CHARACTERS_PER_TOKEN = 16
"""Characters for each token of the prefix that is tokenized first."""


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """The token ids of a text, special tokens included."""

    ids: tuple[int, ...]
    truncated: bool

    @property
    def is_empty(self) -> bool:
        """True if the text has only special tokens, so it has no meaning to compare."""
        return len(self.ids) <= SPECIAL_TOKENS


class WordPieceTokenizer:
    """The tokenizer of a sentence-transformers directory."""

    def __init__(self, directory: Path) -> None:
        said = json.loads((directory / "sentence_bert_config.json").read_text())
        self.max_tokens = int(said["max_seq_length"])
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        # The file configures padding and truncation to 128 tokens.
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self.max_tokens)

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        """Tokenize texts. A long text is tokenized by its prefix, unless the prefix has too few tokens."""
        begins = [_word_prefix(text, MAX_CHARACTERS_PER_TOKEN * self.max_tokens) for text in texts]
        found = self._tokenize_batch(begins)
        short = [at for at, text in enumerate(texts) if begins[at] != text and not found[at].truncated]
        for at, tokens in zip(short, self._tokenize_batch([texts[at] for at in short]), strict=True):
            found[at] = tokens
        return found

    def _tokenize_batch(self, texts: list[str]) -> list[TokenizedText]:
        """Tokenize texts. `encode_batch_fast` omits the unused offsets of tokens in the text."""
        return [
            TokenizedText(tuple(each.ids), bool(each.overflowing)) for each in self._tokenizer.encode_batch_fast(texts)
        ]


def _word_prefix(text: str, length: int) -> str:
    """Return the whole words of the first `length` characters; a word's tokens do not depend on other words."""
    if len(text) <= length:
        return text
    cut = max(text.rfind(space, 0, length) for space in " \n\t")
    return text[:cut] if cut > 0 else text
