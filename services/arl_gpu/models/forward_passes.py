"""How many texts go through a model at once, and fewer where the device has too little memory for so many.

Computing in passes and not all together is the model's own affair: what the manager sends may be more than one.
"""

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from arl_core.control.batching import length_buckets

__all__ = ["MAX_PADDING", "ForwardPasses"]

MAX_PADDING = 0.15
CPU_PASS_TOKENS = 24
"""Reading all weights once takes as long as computing so many tokens: 8 ms, on a core that needs 0.33 for each."""
GPU_TOKENS = 16_384
"""Several times what a large model needs to keep a GPU busy."""
GPU_OUTPUT_BYTES = 2 << 30
"""Of what a pass finds: logits of 150,000 words for `GPU_TOKENS` are 5 GB, which small cards lack beside weights."""
GPU_PASS_WORK = 1.5e12
"""Multiplications in the time that a pass takes, whatever is in it: 10 ms to start some 500 kernels from Python, on a
GPU that does 1.5e14 a second in 16 bits. By arithmetic: no GPU has been asked."""
GROW_AFTER_PASSES = 16
"""As large as there was memory for lately, before larger ones are tried again: others may have had that memory."""
OUT_OF_MEMORY_MESSAGES = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory")
"""In messages of torch's errors that are of no class of their own."""
T = TypeVar("T")

log = logging.getLogger(__name__)


class ForwardPasses:
    """Of one model of so many parameters. `cpu_tokens`: more of them make none cheaper, on a CPU.

    `output_bytes`: of what is found for one token. `is_part`: other ranks compute the rest of the model, so all of them
    have to make the same passes whatever one finds, and these are small on a GPU, too.
    """

    def __init__(self, *, cpu_tokens: int, parameters: int, output_bytes: int = 1, is_sharded: bool = False) -> None:
        self._cpu_tokens, self._is_sharded = cpu_tokens, is_sharded
        self._gpu_tokens = (
            cpu_tokens if is_sharded else max(cpu_tokens, min(GPU_TOKENS, GPU_OUTPUT_BYTES // output_bytes))
        )
        self._gpu_pass_tokens = int(GPU_PASS_WORK / max(1, parameters))
        self._max_tokens = sys.maxsize
        """Tokens, by what there was no memory for lately."""
        self._successes = 0
        """Passes since then that were nearly as large."""
        self._largest_success = 0
        """Tokens of a pass for which there was memory."""

    def group_texts(self, lengths: Sequence[int], content: Any, *, max_padding: float = MAX_PADDING) -> list[list[int]]:
        """Indices of texts of so many tokens, by passes. Without padding, of one length each."""
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
        """What is found for each text of each group, by halves of it where there is no memory for the whole.

        `alone`: in place of what is found for a text that there is no memory for by itself. Without it that raises, and
        where there was memory for as much before, so that it is not the text's fault; and all of it does in a part.
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
                log.warning("too little memory for %d tokens at once; now %d, or one text", padded, self._max_tokens)
                pending += _split_in_half(group)
        return found

    def _record_success(self, padded: int) -> None:
        self._largest_success = max(self._largest_success, padded)
        if 2 * padded >= self._max_tokens:
            self._successes += 1
        if self._successes == GROW_AFTER_PASSES:
            self._max_tokens, self._successes = 2 * self._max_tokens, 0


def _split_in_half(group: list[int]) -> tuple[list[int], list[int]]:
    """The second one first: the last of what is pending is the next."""
    middle = -(-len(group) // 2)
    return group[middle:], group[:middle]


def _try_compute(
    group: Sequence[int], compute: Callable[[Sequence[int]], Iterable[T]], *, reraise: bool
) -> list[T] | None:
    """None where there is too little memory. What was computed until then is let go with the error."""
    try:
        return list(compute(group))
    except Exception as error:
        if reraise or not _is_out_of_memory(error):
            raise
    # What the driver itself lacks, as for a kernel that is loaded at its first use, torch may keep unused.
    if (torch := sys.modules.get("torch")) is not None:
        torch.cuda.empty_cache()
    return None


def _is_out_of_memory(error: Exception) -> bool:
    torch = sys.modules.get("torch")
    if isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in OUT_OF_MEMORY_MESSAGES)
