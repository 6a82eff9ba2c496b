"""The number of texts in one forward pass, which is reduced if the device runs out of memory.

A model divides a batch of the manager into passes itself.
"""

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from arl_core.control.batching import length_buckets

__all__ = ["MAX_PADDING", "ForwardPasses"]

MAX_PADDING = 0.15
CPU_PASS_TOKENS = 24
"""Tokens whose computation takes as long as reading all weights once: 8 ms, on a core that needs 0.33 ms for each."""
GPU_TOKENS = 16_384
"""Maximum tokens of a pass on a GPU; several times what a large model needs to keep a GPU busy."""
GPU_OUTPUT_BYTES = 2 << 30
"""Maximum bytes of a pass's output. Logits of 150,000 words for `GPU_TOKENS` are 5 GB, too much for small GPUs."""
GPU_PASS_WORK = 2.5e12
"""Multiplications in the fixed time of a pass, in which Python starts the kernels.

Measured on an H100 in bfloat16 with torch 2.11: 28 ms at 0.9e14 multiplications a second with 28 layers of 0.6 billion
parameters, and 38 ms at 1.8e14 with 36 layers of 4 billion. The smaller product is used.
"""
GROW_AFTER_PASSES = 16
"""Successful passes near the limit before a larger one is tried: another process may have used the memory."""
OUT_OF_MEMORY_MESSAGES = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory")
"""Messages of out-of-memory errors for which torch has no class."""
T = TypeVar("T")

log = logging.getLogger(__name__)


class ForwardPasses:
    """The passes of one model with `parameters` parameters.

    Args:
        cpu_tokens: Maximum tokens of a pass on a CPU; larger passes are not cheaper for each token.
        parameters: Number of parameters of the model.
        output_bytes: Bytes of a pass's output for one token.
        is_sharded: Other ranks compute the rest of the model. All ranks must make the same passes even if one fails, so
            passes are small on a GPU too.
    """

    def __init__(self, *, cpu_tokens: int, parameters: int, output_bytes: int = 1, is_sharded: bool = False) -> None:
        self._cpu_tokens, self._is_sharded = cpu_tokens, is_sharded
        self._gpu_tokens = (
            cpu_tokens if is_sharded else max(cpu_tokens, min(GPU_TOKENS, GPU_OUTPUT_BYTES // output_bytes))
        )
        self._gpu_pass_tokens = int(GPU_PASS_WORK / max(1, parameters))
        self._max_tokens = sys.maxsize
        """Maximum tokens of a pass, reduced after an out-of-memory error."""
        self._successes = 0
        """Passes since the last reduction that used at least half of the limit."""
        self._largest_success = 0
        """Tokens of the largest pass that succeeded."""

    def group_texts(self, lengths: Sequence[int], content: Any, *, max_padding: float = MAX_PADDING) -> list[list[int]]:
        """Return the indices of texts by pass, given their token counts. Without padding, a pass has one length."""
        on_gpu = bool(getattr(content, "is_cuda", False))
        most = min(self._max_tokens, self._gpu_tokens if on_gpu else self._cpu_tokens)
        free = self._gpu_pass_tokens if on_gpu else CPU_PASS_TOKENS
        return length_buckets(lengths, max_tokens=most, max_padding=max_padding, pass_tokens=free if max_padding else 0)

    def compute_groups(
        self,
        groups: Sequence[Sequence[int]],
        lengths: Sequence[int],
        compute: Callable[[Sequence[int]], Iterable[T]],
        *,
        on_too_large: Callable[[int], T] | None = None,
    ) -> dict[int, T]:
        """Return the result for each text. If memory runs out, a group is divided in halves.

        If a single text is too large, `on_too_large` returns its result. The error is raised if `on_too_large` is None,
        if a text of that size succeeded before, or if the model is sharded.
        """
        found: dict[int, T] = {}
        pending = [list(group) for group in reversed(groups)]
        while pending:
            group = pending.pop()
            padded = len(group) * (longest := max(lengths[at] for at in group))
            if len(group) > 1 and padded > self._max_tokens:
                pending += _split_in_half(group)
                continue
            is_final = len(group) == 1 and (on_too_large is None or longest <= self._largest_success)
            answers = _try_compute(group, compute, reraise=self._is_sharded or is_final)
            if answers is not None:
                found |= zip(group, answers, strict=True)
                self._record_success(padded)
            elif len(group) == 1 and on_too_large is not None:
                found[group[0]] = on_too_large(group[0])
            else:
                self._max_tokens, self._successes = longest * -(-len(group) // 2), 0
                log.warning(
                    "out of memory with %d tokens in one pass; the new limit is %d tokens, or one text",
                    padded,
                    self._max_tokens,
                )
                pending += _split_in_half(group)
        return found

    def _record_success(self, padded: int) -> None:
        self._largest_success = max(self._largest_success, padded)
        if 2 * padded >= self._max_tokens:
            self._successes += 1
        if self._successes == GROW_AFTER_PASSES:
            self._max_tokens, self._successes = 2 * self._max_tokens, 0


def _split_in_half(group: list[int]) -> tuple[list[int], list[int]]:
    """Return both halves, the second one first: the last pending group is computed next."""
    middle = -(-len(group) // 2)
    return group[middle:], group[:middle]


def _try_compute(
    group: Sequence[int], compute: Callable[[Sequence[int]], Iterable[T]], *, reraise: bool
) -> list[T] | None:
    """Return the results, or None if memory runs out. Partial results are released with the error."""
    try:
        return list(compute(group))
    except Exception as error:
        if reraise or not _is_out_of_memory(error):
            raise
    # Torch may cache memory that the driver itself needs, for example to load a kernel at its first use.
    if (torch := sys.modules.get("torch")) is not None:
        torch.cuda.empty_cache()
    return None


def _is_out_of_memory(error: Exception) -> bool:
    torch = sys.modules.get("torch")
    if isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in OUT_OF_MEMORY_MESSAGES)
