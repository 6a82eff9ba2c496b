"""What the worker asks of a model, whatever it computes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from arl_gpu.kept import Hold

__all__ = ["Entry", "Item", "Loaded", "Model", "Scored", "Weights", "failed"]

Item = Mapping[str, Any]
"""As the client sent it."""
Entry = dict[str, Any]
"""`score` and `truncated`, or `error`."""


@dataclass(frozen=True, slots=True)
class Scored:
    """The entries of one batch, in order, and what computing them took."""

    entries: list[Entry]
    texts: int
    tokens: int
    padding: float
    forward_cpu_s: float
    forward_s: float


def failed(code: str, message: str) -> Entry:
    """In place of a score that there is not."""
    return {"error": {"code": code, "message": message}}


class Weights(Protocol):
    """A model's weights in host memory, in one piece."""

    @property
    def content(self) -> memoryview: ...


class Loaded(Weights, Protocol):
    """Those of a model that was just made."""

    def keep(self, hold: Hold) -> None:
        """Have them where `hold` says, from now on; until then nothing of them is in memory, as far as that can be."""
        ...


class Model(Protocol):
    """Computes from bytes that the residency placed; it keeps none of them."""

    @property
    def weights(self) -> Loaded: ...

    @property
    def backend(self) -> str:
        """What computes the forward."""
        ...

    def score(self, items: Sequence[Item], content: Any) -> Scored:
        """An entry for each item. `content` is a `Block.view()`: a memoryview, or a uint8 tensor on a GPU."""
        ...
