"""Cosine similarity of an answer and its reference by a sentence encoder: one loaded service's forward."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from arl_core.batching import buckets, padding
from arl_gpu.encoders.bert import encode_numpy, encode_torch, has_torch, read_config
from arl_gpu.encoders.tokens import Tokens, WordPieces
from arl_gpu.encoders.weights import FlatWeights, read_weights
from arl_gpu.kinds.model import Entry, Item, Scored

__all__ = ["Similarity"]

BUCKET_TOKENS = 1024
"""More of them no longer make a pass cheaper by the token, on a CPU."""
PASS_TOKENS = 24
"""Reading all weights once takes as long as computing so many tokens: 8 ms, on a core that needs 0.33 for each."""


class Similarity:
    """A sentence-transformers directory. Its weights are where the residency puts them."""

    def __init__(self, directory: Path) -> None:
        self.config = read_config(directory)
        self.pieces = WordPieces(directory)
        self._encode, self.backend = (encode_torch, "torch") if has_torch() else (encode_numpy, "numpy")
        self.weights: FlatWeights = read_weights(directory / "model.safetensors")

    def score(self, items: Sequence[Item], content: Any) -> Scored:
        """An entry for each pair of text and reference. A text that several pairs share is encoded once."""
        pairs = [(item["text"], item["reference"]) for item in items]
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        tokens = dict(zip(texts, self.pieces.split(texts), strict=True))
        wanted = [text for text in texts if not tokens[text].is_empty]
        lengths = [len(tokens[text].ids) for text in wanted]
        grouped = buckets(lengths, max_tokens=BUCKET_TOKENS, pass_tokens=PASS_TOKENS)
        begun, cpu = time.monotonic(), time.process_time()
        vectors = self._vectors(wanted, tokens, grouped, content)
        took, used = time.monotonic() - begun, time.process_time() - cpu
        entries = [_entry(*pair, tokens, vectors) for pair in pairs]
        return Scored(entries, len(wanted), sum(lengths), padding(lengths, grouped), used, took)

    def _vectors(
        self, wanted: Sequence[str], tokens: dict[str, Tokens], grouped: Sequence[Sequence[int]], content: Any
    ) -> dict[str, Any]:
        arrays = self.weights.arrays(content)
        found: dict[str, Any] = {}
        for group in grouped:
            names = [wanted[at] for at in group]
            found |= zip(names, self._encode(arrays, [tokens[name].ids for name in names], self.config), strict=True)
        return found


def _entry(text: str, reference: str, tokens: dict[str, Tokens], vectors: dict[str, Any]) -> Entry:
    for name, given in (("text", text), ("reference", reference)):
        if tokens[given].is_empty:
            return _error(f"empty_{name}", f"{name} has no words: there is nothing to compare")
    score = float(np.dot(vectors[text], vectors[reference]))
    if not np.isfinite(score):
        return _error("not_finite", "the model's output is not a number")
    return {"score": score, "truncated": tokens[text].truncated or tokens[reference].truncated}


def _error(code: str, message: str) -> Entry:
    return {"error": {"code": code, "message": message}}
