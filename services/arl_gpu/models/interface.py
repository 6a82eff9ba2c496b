"""The model interface that the worker uses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from arl_gpu.models.weight_buffer import AllocateFn

__all__ = ["Entry", "HostWeights", "Item", "LoadableWeights", "ModelOutput", "RewardModel", "error_entry"]

Item = Mapping[str, Any]
"""An item as the client sent it."""
Entry = dict[str, Any]
"""An entry with `score` and `truncated`, or with `error`."""


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """The entries of one batch, in order, and the cost of their computation."""

    entries: list[Entry]
    texts: int
    tokens: int
    padding: float
    forward_cpu_s: float
    forward_s: float


def error_entry(code: str, message: str) -> Entry:
    """Return the entry of an item without a score."""
    return {"error": {"code": code, "message": message}}


class HostWeights(Protocol):
    """A model's weights in one buffer of host memory."""

    @property
    def content(self) -> memoryview:
        """Return the weights as one buffer."""


class LoadableWeights(HostWeights, Protocol):
    """The weights of a new model."""

    def allocate(self, allocate_fn: AllocateFn) -> None:
        """Copy the weights to the memory of `allocate_fn`. Before that, as few as possible are in memory."""
        ...


class RewardModel(Protocol):
    """A model that computes from bytes which the residency copied to a device; it keeps no weights itself."""

    @property
    def weights(self) -> LoadableWeights:
        """Return the weights of the model."""

    @property
    def backend(self) -> str:
        """Library that computes the forward."""
        ...

    def score(self, items: Sequence[Item], content: Any) -> ModelOutput:
        """Return an entry for each item. `content` is a `DeviceBlock.view()`: a memoryview or a GPU uint8 tensor."""
        ...
