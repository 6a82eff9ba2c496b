"""Cosine similarity of an answer and its reference, or of a document and a query, by a sentence encoder."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from arl_gpu.models.encoders.sentence_encoder import EncodedTexts, SentenceEncoder, empty_text_entry
from arl_gpu.models.interface import Entry, Item, ModelOutput, error_entry

__all__ = ["SimilarityModel"]


class SimilarityModel(SentenceEncoder):
    """Of kind `similarity` and of kind `relevance`: `reference` is the answer that was wanted, or the query."""

    def score(self, items: Sequence[Item], content: Any) -> ModelOutput:
        """An entry for each pair of text and reference."""
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
        return error_entry("not_finite", "the model's output is not a number")
    return {"score": score, "truncated": tokens[text].truncated or tokens[reference].truncated}
