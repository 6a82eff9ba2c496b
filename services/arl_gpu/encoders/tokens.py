"""Text to token ids, as sentence-transformers does it: lower case, special tokens, cut at the model's length."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

__all__ = ["Tokens", "WordPieces"]

SPECIAL = 2
"""[CLS] and [SEP], around every text."""


@dataclass(frozen=True, slots=True)
class Tokens:
    ids: tuple[int, ...]
    truncated: bool

    @property
    def is_empty(self) -> bool:
        """Nothing but special tokens: the text has no meaning to compare."""
        return len(self.ids) <= SPECIAL


class WordPieces:
    """The tokenizer of a sentence-transformers directory."""

    def __init__(self, directory: Path) -> None:
        said = json.loads((directory / "sentence_bert_config.json").read_text())
        self.max_tokens = int(said["max_seq_length"])
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        # The file itself pads and cuts everything to 128.
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self.max_tokens)

    def split(self, texts: Sequence[str]) -> list[Tokens]:
        return [Tokens(tuple(each.ids), bool(each.overflowing)) for each in self._tokenizer.encode_batch(list(texts))]
