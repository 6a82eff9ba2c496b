"""What a batch waits for while its model's weights arrive."""

import time
from collections.abc import Callable

__all__ = ["Arrivals"]


class Arrivals:
    """Answers `arl_gpu.kinds.model.Arrived`. `wait` tells whether all bytes are there; `then` is done once they are."""

    def __init__(self, wait: Callable[[int], bool], then: Callable[[], object]) -> None:
        self._wait, self._then = wait, then
        self.is_whole = False
        self.waited_s = 0.0

    def __call__(self, upto: int) -> None:
        if self.is_whole:
            return
        begun = time.monotonic()
        self.is_whole = self._wait(upto)
        self.waited_s += time.monotonic() - begun
        if self.is_whole:
            self._then()
