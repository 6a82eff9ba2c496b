"""Forwards of torch that begin before all of their weights are there."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from arl_gpu.kinds.model import Arrived

__all__ = ["EARLY", "Arriving"]

EARLY = frozenset(
    {
        *("bert", "deberta-v2", "gemma2", "gemma3_text", "gpt2", "gpt_neox", "llama", "mistral", "modernbert", "phi"),
        *("qwen2", "qwen3", "roberta", "xlm-roberta"),
    }
)
"""`model_type`s whose forwards were seen to read weights by torch's operations alone. Kernels that others bring along
for a model may be given the address of a weight, and nobody would know."""


class Arriving(TorchDispatchMode):  # type: ignore[misc]
    """Meanwhile every operation waits for what it reads of a content, by whatever name its module knows that.

    Modules read weights in ways of their own, tied ones and slices among them; operations are what all of them end in.
    `alignment`: of what lies in the content; the bytes behind a tensor up to there are nobody else's.
    """

    def __init__(self, content: torch.Tensor, arrived: Arrived, *, alignment: int) -> None:
        super().__init__()
        self._begin, self._size = content.data_ptr(), content.numel()
        self._arrived, self._alignment = arrived, alignment

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if not self._arrived.is_whole:
            for tensor in _tensors((*args, *(kwargs or {}).values())):
                self._wait_for(tensor)
        return func(*args, **(kwargs or {}))

    def _wait_for(self, tensor: torch.Tensor) -> None:
        offset = tensor.data_ptr() - self._begin
        if not 0 <= offset < self._size or not tensor.numel():
            return
        reach = 1 + sum((count - 1) * stride for count, stride in zip(tensor.shape, tensor.stride(), strict=True))
        end = offset + reach * tensor.element_size()
        self._arrived(min(self._size, -(-end // self._alignment) * self._alignment))


def _tensors(given: Sequence[Any]) -> Iterator[torch.Tensor]:
    """Also those in lists, as of a concatenation."""
    for each in given:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, list | tuple):
            yield from _tensors(each)
