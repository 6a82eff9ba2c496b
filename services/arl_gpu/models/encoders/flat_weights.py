"""A model's weights in one flat buffer of host memory, and views of the same arrays in any copy of it."""

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
"""Alignment of arrays in bytes, for fast reads on devices."""

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _ArraySlice:
    offset: int
    shape: tuple[int, ...]

    def view(self, content: Any) -> Any:
        """Return a view of `content`; it is a tensor if `content` is a torch tensor."""
        if isinstance(content, memoryview | bytearray):
            return np.frombuffer(content, np.float32, math.prod(self.shape), self.offset).reshape(self.shape)
        from torch import float32  # `content` is a tensor, so torch is installed

        return content[self.offset : self.offset + 4 * math.prod(self.shape)].view(float32).view(self.shape)


class FlatWeights(WeightBuffer):
    """A buffer of float32 weights, converted from arrays of any floating type."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = dict(arrays)
        self.slices: dict[str, _ArraySlice] = {}
        self.size = 0
        for name, array in arrays.items():
            self.slices[name] = _ArraySlice(self.size, tuple(array.shape))
            self.size += -(-array.size * 4 // ALIGNMENT) * ALIGNMENT

    def arrays(self, content: Any) -> Mapping[str, Array]:
        """Return views of `content`, which is this buffer or a copy of it; they are tensors if it is a torch tensor."""
        return {name: place.view(content) for name, place in self.slices.items()}

    def _chunks(self) -> Iterator[Chunk]:
        for name, array in self._arrays.items():
            flat = np.ascontiguousarray(array, np.float32).reshape(-1)
            yield self.slices[name].offset, flat.view(np.uint8).data

    def _release_source(self) -> None:
        self._arrays.clear()


def read_weights(*paths: Path) -> FlatWeights:
    """Read every floating point tensor of safetensors files as float32. Integer tensors there are positions, not
    weights.

    The pooler is skipped, because embeddings do not need it.
    """
    tensors: dict[str, Any] = {}
    for path in paths:
        with safe_open(path, framework="np") as file:
            tensors |= {name: file.get_tensor(name) for name in sorted(file.keys()) if not name.startswith("pooler.")}
    return FlatWeights({name: tensor for name, tensor in tensors.items() if np.issubdtype(tensor.dtype, np.floating)})
