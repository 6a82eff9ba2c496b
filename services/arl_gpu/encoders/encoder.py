"""Texts to unit vectors by a sentence encoder whose weights are where the residency puts them."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arl_core.batching import padding
from arl_gpu.encoders.bert import encode_numpy, encode_torch, has_torch, read_config
from arl_gpu.encoders.tokens import Tokens, WordPieces
from arl_gpu.encoders.weights import FlatWeights, read_weights
from arl_gpu.kinds.model import Entry, Scored, failed
from arl_gpu.passes import Passes

__all__ = ["Encoded", "Encoder", "empty"]

CPU_TOKENS = 1024
"""In a pass: more of them no longer make it cheaper by the token."""
BYTES = 4
"""Of a parameter."""


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
        self._passes = Passes(cpu_tokens=CPU_TOKENS, parameters=self.weights.size // BYTES)

    def encode(self, given: Sequence[str], content: Any) -> Encoded:
        """A text that is there several times is encoded once; equal ones in another company may differ by 1e-6."""
        texts = list(dict.fromkeys(given))
        tokens = dict(zip(texts, self.pieces.split(texts), strict=True))
        wanted = [text for text in texts if not tokens[text].is_empty]
        lengths = [len(tokens[text].ids) for text in wanted]
        grouped = self._passes.grouped(lengths, content)
        begun, cpu = time.monotonic(), time.process_time()
        arrays = self.weights.arrays(content)

        def encoded(group: Sequence[int]) -> Any:
            return self._encode(arrays, [tokens[wanted[at]].ids for at in group], self.config)

        vectors = {wanted[at]: each for at, each in self._passes.computed(grouped, lengths, encoded).items()}
        took, used = time.monotonic() - begun, time.process_time() - cpu
        return Encoded(tokens, vectors, sum(lengths), padding(lengths, grouped), used, took)


def empty(name: str, why: str) -> Entry:
    return failed(f"empty_{name}", f"{name} has no words: there is nothing to {why}")
