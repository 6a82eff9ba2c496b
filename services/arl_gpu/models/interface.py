"""What the worker asks of a model, whatever it computes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from arl_gpu.models.weight_buffer import AllocateFn

__all__ = ["Entry", "HostWeights", "Item", "LoadableWeights", "ModelOutput", "RewardModel", "error_entry"]

Item = Mapping[str, Any]
"""As the client sent it."""
Entry = dict[str, Any]
"""`score` and `truncated`, or `error`."""


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """The entries of one batch, in order, and what computing them took."""

    entries: list[Entry]
    texts: int
    tokens: int
    padding: float
    forward_cpu_s: float
    forward_s: float


def error_entry(code: str, message: str) -> Entry:
    """In place of a score that there is not."""
    return {"error": {"code": code, "message": message}}


class HostWeights(Protocol):
    """A model's weights in host memory, in one piece."""

    @property
    def content(self) -> memoryview: ...


class LoadableWeights(HostWeights, Protocol):
    """Those of a model that was just made."""

    def allocate(self, allocate_fn: AllocateFn) -> None:
        """Have them where `hold` says, from now on; until then nothing of them is in memory, as far as that can be."""
        ...


class RewardModel(Protocol):
    """Computes from bytes that the residency placed; it keeps none of them."""

    @property
    def weights(self) -> LoadableWeights: ...

    @property
    def backend(self) -> str:
        """What computes the forward."""
        ...

    def score(self, items: Sequence[Item], content: Any) -> ModelOutput:
        """An entry for each item. `content` is a `Block.view()`: a memoryview, or a uint8 tensor on a GPU."""
        ...
