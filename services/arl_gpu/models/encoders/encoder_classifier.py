"""A small head on a frozen sentence encoder: the probability that a text is good, or of one of several labels."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from arl_gpu.models.encoders.sentence_encoder import EncodedTexts, SentenceEncoder, empty_text_entry
from arl_gpu.models.interface import Entry, Item, ModelOutput, error_entry

__all__ = ["EncoderClassifier"]


class EncoderClassifier(SentenceEncoder):
    """A classifier with `head.weight` (labels by hidden size) and `head.bias` from a separate file, in the same buffer.

    With one label, the score is its probability. With several, it is that of the last, and `values` has all.
    """

    def __init__(self, directory: Path, head: Path, *, activation: bool = True) -> None:
        super().__init__(directory, head)
        self._activation = activation

    def score(self, items: Sequence[Item], content: Any) -> ModelOutput:
        """Return an entry with the probabilities of each text."""
        texts = [str(item["text"]) for item in items]
        encoded = self.encode(texts, content)
        arrays = self.weights.arrays(content)
        head = {name: _to_numpy(arrays[name]) for name in ("head.weight", "head.bias")}
        return encoded.to_output([self._entry(text, encoded, head) for text in texts])

    def _entry(self, text: str, encoded: EncodedTexts, head: Mapping[str, Any]) -> Entry:
        if encoded.tokens[text].is_empty:
            return empty_text_entry("text", "judge")
        logits = head["head.weight"] @ encoded.vectors[text] + head["head.bias"]
        values = [float(value) for value in (_activate(logits) if self._activation else logits)]
        if not np.isfinite(values).all():
            return error_entry("not_finite", "the model's output is not a finite number")
        entry: Entry = {"score": values[-1], "truncated": encoded.tokens[text].truncated}
        return entry | ({"values": values} if len(values) > 1 else {})


def _to_numpy(array: Any) -> Any:
    """Return the array in host memory; it is small."""
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()


def _activate(logits: Any) -> Any:
    """Return the probabilities. One label uses a sigmoid, because a softmax would always be 1."""
    if len(logits) == 1:
        return 1 / (1 + np.exp(-logits))
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()
