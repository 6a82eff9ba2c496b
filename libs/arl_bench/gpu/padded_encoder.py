"""The forward of a similarity service as a simple server calls it: all texts of a batch are padded to the longest."""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from arl_gpu.catalog.service_files import installed_services
from arl_gpu.models.encoders.bert import encode_numpy, encode_torch, has_torch
from arl_gpu.models.encoders.sentence_encoder import SimilarityModel

__all__ = ["PaddedEncoder"]


class PaddedEncoder:
    """A similarity model with padded batches. Raises `LookupError` if the service is not installed."""

    def __init__(self, service: str) -> None:
        files = next(iter(installed_services([service])), None)
        if files is None:
            raise LookupError(f"{service} is not installed")
        self._model = SimilarityModel(files.directory)
        self._arrays = self._model.weights.arrays(self._model.weights.content)
        self._encode = encode_torch if has_torch() else encode_numpy

    def score_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Score each pair of text and reference with one forward."""
        tokens = self._model.tokenizer.tokenize(list(chain.from_iterable(pairs)))
        vectors = self._encode(self._arrays, [each.ids for each in tokens], self._model.config)
        return [float(np.dot(*both)) for both in zip(vectors[::2], vectors[1::2], strict=True)]
