"""Unit vectors of texts from a sentence encoder with resident weights, and the cosine similarity of pairs."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from arl_core.control.batching import padding_share
from arl_gpu.models.encoders.bert import encode_numpy, encode_torch, has_torch, read_config
from arl_gpu.models.encoders.flat_weights import FlatWeights, read_weights
from arl_gpu.models.encoders.tokenizer import TokenizedText, WordPieceTokenizer
from arl_gpu.models.forward_passes import ForwardPasses
from arl_gpu.models.interface import Entry, Item, ModelOutput, error_entry

__all__ = ["EncodedTexts", "SentenceEncoder", "SimilarityModel", "empty_text_entry"]

MAX_CPU_PASS_TOKENS = 1024
"""Maximum tokens in a pass; more tokens no longer reduce the cost of each."""
BYTES_PER_PARAMETER = 4
"""Bytes of a parameter."""


@dataclass(frozen=True, slots=True)
class EncodedTexts:
    """The tokens of each text, the vector of each non-empty text, and the cost of the computation."""

    tokens: Mapping[str, TokenizedText]
    vectors: Mapping[str, Any]
    token_count: int
    padding: float
    cpu_s: float
    took_s: float

    def to_output(self, entries: list[Entry]) -> ModelOutput:
        """Return the output of the model with these entries."""
        return ModelOutput(entries, len(self.vectors), self.token_count, self.padding, self.cpu_s, self.took_s)


class SentenceEncoder:
    """An encoder from a sentence-transformers directory and additional weight files."""

    def __init__(self, directory: Path, *further: Path) -> None:
        self.config = read_config(directory)
        self.tokenizer = WordPieceTokenizer(directory)
        self._encode, self.backend = (encode_torch, "torch") if has_torch() else (encode_numpy, "numpy")
        self.weights: FlatWeights = read_weights(directory / "model.safetensors", *further)
        self._passes = ForwardPasses(
            cpu_tokens=MAX_CPU_PASS_TOKENS, parameters=self.weights.size // BYTES_PER_PARAMETER
        )

    def encode(self, input_texts: Sequence[str], content: Any) -> EncodedTexts:
        """Encode each distinct text once. Equal texts in different batches can differ by 1e-6."""
        texts = list(dict.fromkeys(input_texts))
        tokens = dict(zip(texts, self.tokenizer.tokenize(texts), strict=True))
        wanted = [text for text in texts if not tokens[text].is_empty]
        lengths = [len(tokens[text].ids) for text in wanted]
        grouped = self._passes.group_texts(lengths, content)
        begun, cpu = time.monotonic(), time.process_time()
        arrays = self.weights.arrays(content)

        def encoded(group: Sequence[int]) -> Any:
            """Return the vectors of a group of texts."""
            return self._encode(arrays, [tokens[wanted[at]].ids for at in group], self.config)

        vectors = {wanted[at]: each for at, each in self._passes.compute_groups(grouped, lengths, encoded).items()}
        took, used = time.monotonic() - begun, time.process_time() - cpu
        return EncodedTexts(tokens, vectors, sum(lengths), padding_share(lengths, grouped), used, took)


def empty_text_entry(name: str, purpose: str) -> Entry:
    """Return the error entry of a text without words."""
    return error_entry(f"empty_{name}", f"{name} has no words, so it cannot be used to {purpose}")


class SimilarityModel(SentenceEncoder):
    """A model of the kinds `similarity` and `relevance`. `reference` is the expected answer, or the query."""

    def score(self, items: Sequence[Item], content: Any) -> ModelOutput:
        """Return an entry for each pair of text and reference."""
        pairs = [(str(item["text"]), str(item["reference"])) for item in items]
        encoded = self.encode([text for pair in pairs for text in pair], content)
        return encoded.to_output([_entry(*pair, encoded) for pair in pairs])


def _entry(text: str, reference: str, encoded: EncodedTexts) -> Entry:
    tokens = encoded.tokens
    for name, given in (("text", text), ("reference", reference)):
        if tokens[given].is_empty:
            return empty_text_entry(name, "compare")
    score = float(np.dot(encoded.vectors[text], encoded.vectors[reference]))
    if not np.isfinite(score):
        return error_entry("not_finite", "the model's output is not a finite number")
    return {"score": score, "truncated": tokens[text].truncated or tokens[reference].truncated}
