"""Texts to unit vectors by a sentence encoder whose weights are where the residency puts them."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arl_core.batching import buckets, padding
from arl_gpu.encoders.bert import encode_numpy, encode_torch, has_torch, read_config
from arl_gpu.encoders.tokens import Tokens, WordPieces
from arl_gpu.encoders.weights import FlatWeights, read_weights
from arl_gpu.kinds.model import Entry, Scored, failed

__all__ = ["Encoded", "Encoder", "empty"]

BUCKET_TOKENS = 1024
"""More of them no longer make a pass cheaper by the token, on a CPU."""
PASS_TOKENS = 24
"""Reading all weights once takes as long as computing so many tokens: 8 ms, on a core that needs 0.33 for each."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """Of each text its tokens, and its vector unless it is empty; and what computing them took."""

    tokens: Mapping[str, Tokens]
    vectors: Mapping[str, Any]
    computed: int
    padding: float
    cpu_s: float
    took_s: float

    def scored(self, entries: list[Entry]) -> Scored:
        return Scored(entries, len(self.vectors), self.computed, self.padding, self.cpu_s, self.took_s)


class Encoder:
    """A sentence-transformers directory, and further files of weights beside it."""

    def __init__(self, directory: Path, *further: Path) -> None:
        self.config = read_config(directory)
        self.pieces = WordPieces(directory)
        self._encode, self.backend = (encode_torch, "torch") if has_torch() else (encode_numpy, "numpy")
        self.weights: FlatWeights = read_weights(directory / "model.safetensors", *further)

    def encode(self, given: Sequence[str], content: Any) -> Encoded:
        """A text that is there several times is encoded once; equal ones in another company may differ by 1e-6."""
        texts = list(dict.fromkeys(given))
        tokens = dict(zip(texts, self.pieces.split(texts), strict=True))
        wanted = [text for text in texts if not tokens[text].is_empty]
        lengths = [len(tokens[text].ids) for text in wanted]
        grouped = buckets(lengths, max_tokens=BUCKET_TOKENS, pass_tokens=PASS_TOKENS)
        begun, cpu = time.monotonic(), time.process_time()
        vectors = self._vectors(wanted, tokens, grouped, content)
        took, used = time.monotonic() - begun, time.process_time() - cpu
        return Encoded(tokens, vectors, sum(lengths), padding(lengths, grouped), used, took)

    def _vectors(
        self, wanted: Sequence[str], tokens: dict[str, Tokens], grouped: Sequence[Sequence[int]], content: Any
    ) -> dict[str, Any]:
        arrays = self.weights.arrays(content)
        found: dict[str, Any] = {}
        for group in grouped:
            names = [wanted[at] for at in group]
            found |= zip(names, self._encode(arrays, [tokens[name].ids for name in names], self.config), strict=True)
        return found


def empty(name: str, why: str) -> Entry:
    return failed(f"empty_{name}", f"{name} has no words: there is nothing to {why}")
