"""A model's weights in one flat piece of host memory, and the same arrays wherever those bytes are."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from arl_gpu.models.weight_buffer import Chunk, WeightBuffer

__all__ = ["Array", "FlatWeights", "read_weights"]

ALIGNMENT = 256
"""Bytes; what devices like."""

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _ArraySlice:
    offset: int
    shape: tuple[int, ...]

    def view(self, content: Any) -> Any:
        """A view of `content`: a tensor, where it is one of torch."""
        if isinstance(content, memoryview | bytearray):
            return np.frombuffer(content, np.float32, math.prod(self.shape), self.offset).reshape(self.shape)
        from torch import float32  # where there is such a tensor, there is torch

        return content[self.offset : self.offset + 4 * math.prod(self.shape)].view(float32).view(self.shape)


class FlatWeights(WeightBuffer):
    """Of float32, from arrays of any floating type."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = dict(arrays)
        self.slices: dict[str, _ArraySlice] = {}
        self.size = 0
        for name, array in arrays.items():
            self.slices[name] = _ArraySlice(self.size, tuple(array.shape))
            self.size += -(-array.size * 4 // ALIGNMENT) * ALIGNMENT

    def arrays(self, content: Any) -> Mapping[str, Array]:
        """Views of `content`, which is this one or a copy of it elsewhere: tensors, where it is one of torch."""
        return {name: place.view(content) for name, place in self.slices.items()}

    def _chunks(self) -> Iterator[Chunk]:
        for name, array in self._arrays.items():
            flat = np.ascontiguousarray(array, np.float32).reshape(-1)
            yield self.slices[name].offset, flat.view(np.uint8).data

    def _release_source(self) -> None:
        self._arrays.clear()


def read_weights(*paths: Path) -> FlatWeights:
    """Every floating point tensor of safetensors files as float32. Whole numbers there are positions, not weights.

    Without a pooler, which embeddings do without.
    """
    tensors: dict[str, Any] = {}
    for path in paths:
        with safe_open(path, framework="np") as file:
            tensors |= {name: file.get_tensor(name) for name in sorted(file.keys()) if not name.startswith("pooler.")}
    return FlatWeights({name: tensor for name, tensor in tensors.items() if np.issubdtype(tensor.dtype, np.floating)})
