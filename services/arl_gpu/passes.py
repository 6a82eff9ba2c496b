"""How many texts go through a model at once, and fewer where the device has too little memory for so many.

Computing in passes and not all together is the model's own affair: what the manager sends may be more than one.
"""

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from arl_core.batching import buckets

__all__ = ["MAX_PADDING", "Passes"]

MAX_PADDING = 0.15
CPU_PASS_TOKENS = 24
"""Reading all weights once takes as long as computing so many tokens: 8 ms, on a core that needs 0.33 for each."""
GPU_TOKENS = 16_384
"""Several times what a large model needs to keep a GPU busy, and less memory than is left of 80 GB beside weights:
logits of 150,000 words take 5."""
GPU_PASS_WORK = 1.5e12
"""Multiplications in the time that a pass takes, whatever is in it: 10 ms to start some 500 kernels from Python, on a
GPU that does 1.5e14 a second in 16 bits. By arithmetic: no GPU has been asked."""
T = TypeVar("T")

log = logging.getLogger(__name__)


class Passes:
    """Of one model of so many parameters. `cpu_tokens`: more of them make none cheaper, on a CPU.

    `is_part`: other ranks compute the rest of it, so all of them have to make the same passes whatever one finds.
    """

    def __init__(self, *, cpu_tokens: int, parameters: int, is_part: bool = False) -> None:
        self._cpu_tokens, self._parameters, self._is_part = cpu_tokens, max(1, parameters), is_part
        self._most = sys.maxsize
        """Tokens, by what there was no memory for."""

    def grouped(self, lengths: Sequence[int], content: Any, *, max_padding: float = MAX_PADDING) -> list[list[int]]:
        """Indices of texts of so many tokens, by passes. Without padding, of one length each."""
        on_gpu = bool(getattr(content, "is_cuda", False))
        most = GPU_TOKENS if on_gpu else self._cpu_tokens
        free = int(GPU_PASS_WORK / self._parameters) if on_gpu else CPU_PASS_TOKENS
        return buckets(
            lengths, max_tokens=min(most, self._most), max_padding=max_padding, pass_tokens=free if max_padding else 0
        )

    def computed(
        self,
        groups: Sequence[Sequence[int]],
        lengths: Sequence[int],
        compute: Callable[[Sequence[int]], Iterable[T]],
        *,
        alone: Callable[[int], T] | None = None,
    ) -> dict[int, T]:
        """What is found for each text of each group, by halves of it where there is no memory for the whole.

        `alone`: in place of what is found for a text that there is no memory for by itself; without it that raises, as
        all of it does where this is a part.
        """
        found: dict[int, T] = {}
        pending = [list(group) for group in reversed(groups)]
        while pending:
            group = pending.pop()
            padded = len(group) * max(lengths[at] for at in group)
            if len(group) > 1 and padded > self._most:
                pending += _halves(group)
                continue
            answers = _tried(group, compute, must=self._is_part or (len(group) == 1 and alone is None))
            if answers is not None:
                found |= zip(group, answers, strict=True)
            elif len(group) == 1 and alone is not None:
                found[group[0]] = alone(group[0])
            else:
                self._most = padded // 2
                log.warning("too little memory for %d tokens at once; from now on %d, or one text", padded, self._most)
                pending += _halves(group)
        return found


def _halves(group: list[int]) -> tuple[list[int], list[int]]:
    """The second one first: the last of what is pending is the next."""
    middle = len(group) // 2
    return group[middle:], group[:middle]


def _tried(group: Sequence[int], compute: Callable[[Sequence[int]], Iterable[T]], *, must: bool) -> list[T] | None:
    """None where there is too little memory. What was computed until then is let go with the error."""
    try:
        return list(compute(group))
    except _out_of_memory():
        if must:
            raise
        return None


def _out_of_memory() -> tuple[type[Exception], ...]:
    """Torch's is another one, where it was imported."""
    torch = sys.modules.get("torch")
    return (MemoryError,) if torch is None else (MemoryError, torch.OutOfMemoryError)
