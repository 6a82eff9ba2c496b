"""What a batch waits for while its model's weights arrive."""

import time
from collections.abc import Callable

from arl_gpu.kinds.model import Arrived

__all__ = ["Arrivals"]


class Arrivals:
    """Answers `arl_gpu.kinds.model.Arrived`. `then` is done once, when all `size` bytes are there."""

    def __init__(self, arrived: Arrived, *, size: int, then: Callable[[], object]) -> None:
        self._arrived, self._size, self._then = arrived, size, then
        self._there = 0
        self.waited_s = 0.0

    def __call__(self, upto: int) -> None:
        if upto <= self._there:
            return
        begun = time.monotonic()
        self._arrived(upto)
        self.waited_s += time.monotonic() - begun
        self._there = upto
        if upto >= self._size:
            self._then()
