"""A flat buffer of a torch module's tensors in host memory, and calls of the module with any copy of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.func import functional_call

from arl_gpu.devices.interface import wait_for_gpu
from arl_gpu.models.weight_buffer import Chunk, WeightBuffer

__all__ = ["FlatModule"]

ALIGNMENT = 256
"""Alignment of tensors in bytes, for fast reads on devices."""
WRITABLE_SUFFIX = "inv_freq"
"""End of the names of buffers that a forward may write: frequencies of rotary positions that depend on the length."""


@dataclass(frozen=True, slots=True)
class _TensorSlice:
    offset: int
    size: int
    shape: tuple[int, ...]
    dtype: Any


class FlatModule(WeightBuffer):
    """A buffer of a module's tensors. After `allocate`, the module has only their shapes.

    It includes parameters and buffers, also those without a checkpoint entry (tables of rotary positions): everything
    that a forward reads. Tied tensors are stored once, under all of their names.
    """

    def __init__(self, module: Any) -> None:
        self.module = module.eval()
        self._slices: dict[str, _TensorSlice] = {}
        end, by_storage = 0, dict[tuple[Any, ...], _TensorSlice]()
        for name, tensor in _named_tensors(module):
            key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
            if tensor.numel() == 0 or key not in by_storage:
                size = tensor.numel() * tensor.element_size()
                by_storage[key] = _TensorSlice(end, size, tuple(tensor.shape), tensor.dtype)
                end += -(-size // ALIGNMENT) * ALIGNMENT
            self._slices[name] = by_storage[key]
        self.size = max(1, end)

    def __call__(self, content: Any, **arguments: Any) -> Any:
        """Run a forward with the weights in `content`, which is this buffer or a copy of it on a device."""
        flat = content if isinstance(content, torch.Tensor) else torch.frombuffer(content, dtype=torch.uint8)
        views = self._views(flat)
        with torch.inference_mode():
            found = functional_call(self.module, views, (), arguments)
        if flat.is_cuda:
            wait_for_gpu()
        return found

    def _views(self, flat: Any) -> dict[str, Any]:
        views = {
            name: flat[place.offset : place.offset + place.size].view(place.dtype).view(place.shape)
            for name, place in self._slices.items()
        }
        # Several workers can map the same bytes.
        return {name: view.clone() if name.endswith(WRITABLE_SUFFIX) else view for name, view in views.items()}

    def _chunks(self) -> Iterator[Chunk]:
        begin = 0
        for name, tensor in _named_tensors(self.module):
            place = self._slices[name]
            if place.offset >= begin and place.size:
                begin = place.offset + place.size
                # Tensors that are not contiguous, such as columns of a matrix, are copied for the duration of the
                # yield.
                flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
                yield place.offset, memoryview(flat.numpy())

    def _release_source(self) -> None:
        """Replace the module's tensors by meta tensors, which use no memory and cannot be computed with."""
        for part in self.module.modules():
            for kept, make in ((part._parameters, _to_meta_parameter), (part._buffers, _to_meta)):
                for name, tensor in kept.items():
                    if tensor is not None:
                        kept[name] = make(tensor)


def _named_tensors(module: Any) -> Iterator[tuple[str, Any]]:
    yield from module.named_buffers(remove_duplicate=False)
    yield from module.named_parameters(remove_duplicate=False)


def _to_meta(tensor: Any) -> Any:
    return torch.empty_like(tensor, device="meta")


def _to_meta_parameter(tensor: Any) -> Any:
    return torch.nn.Parameter(_to_meta(tensor), requires_grad=False)
