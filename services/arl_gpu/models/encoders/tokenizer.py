"""Text to token ids, as sentence-transformers does it: lower case, special tokens, cut at the model's length."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

__all__ = ["TokenizedText", "WordPieceTokenizer"]

SPECIAL_TOKENS = 2
"""[CLS] and [SEP], around every text."""
MAX_CHARACTERS_PER_TOKEN = 16
"""Characters that are looked at first."""


@dataclass(frozen=True, slots=True)
class TokenizedText:
    ids: tuple[int, ...]
    truncated: bool

    @property
    def is_empty(self) -> bool:
        """Nothing but special tokens: the text has no meaning to compare."""
        return len(self.ids) <= SPECIAL_TOKENS


class WordPieceTokenizer:
    """The tokenizer of a sentence-transformers directory."""

    def __init__(self, directory: Path) -> None:
        said = json.loads((directory / "sentence_bert_config.json").read_text())
        self.max_tokens = int(said["max_seq_length"])
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        # The file itself pads and cuts everything to 128.
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self.max_tokens)

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        """What is beyond the model's length need not be read, where the text before it is long enough."""
        begins = [_word_prefix(text, MAX_CHARACTERS_PER_TOKEN * self.max_tokens) for text in texts]
        found = self._tokenize_batch(begins)
        short = [at for at, text in enumerate(texts) if begins[at] != text and not found[at].truncated]
        for at, tokens in zip(short, self._tokenize_batch([texts[at] for at in short]), strict=True):
            found[at] = tokens
        return found

    def _tokenize_batch(self, texts: list[str]) -> list[TokenizedText]:
        """`fast` is without each token's place in the text, which nobody asks for."""
        return [
            TokenizedText(tuple(each.ids), bool(each.overflowing)) for each in self._tokenizer.encode_batch_fast(texts)
        ]


def _word_prefix(text: str, length: int) -> str:
    """Its whole words up to there: no word's tokens depend on another's."""
    if len(text) <= length:
        return text
    cut = max(text.rfind(space, 0, length) for space in " \n\t")
    return text[:cut] if cut > 0 else text
