"""What a batch waits for while its model's weights arrive."""

import time
from collections.abc import Callable

__all__ = ["Arrivals"]


class Arrivals:
    """Answers `arl_gpu.kinds.model.Arrived`. `then` is done once, when all `size` bytes are there."""

    def __init__(self, wait: Callable[[int], None], *, size: int, then: Callable[[], object]) -> None:
        self._wait, self._size, self._then = wait, size, then
        self._there = 0
        self.waited_s = 0.0

    @property
    def is_whole(self) -> bool:
        return self._there >= self._size

    def __call__(self, upto: int) -> None:
        if upto <= self._there:
            return
        begun = time.monotonic()
        self._wait(upto)
        self.waited_s += time.monotonic() - begun
        self._there = upto
        if self.is_whole:
            self._then()
