"""The outputs of processes that earlier actions of an environment left behind."""

from collections.abc import Callable

from arl_cpu.launcher.linux.event_loop import EventLoop
from arl_cpu.launcher.sandbox.attempt import OutputCapture

__all__ = ["LeftoverOutputs"]

_MAX_OUTPUTS = 64
"""A process can keep each output open, and the launcher's open files are limited."""


class LeftoverOutputs:
    """A reader that discards output. If the pipes were closed, SIGPIPE would kill the processes."""

    def __init__(self, loop: EventLoop, on_read: Callable[[int], None]) -> None:
        self._loop, self._on_read = loop, on_read
        self._captures: list[OutputCapture] = []

    def keep(self, capture: OutputCapture) -> None:
        """Continue to read an output until its end. With too many outputs, the oldest is closed."""
        self._captures.append(capture)
        if len(self._captures) > _MAX_OUTPUTS:
            self._close(self._captures[0])

        def discard() -> None:
            """Read and discard one portion."""
            taken = capture.read()
            if taken == 0:
                self._close(capture)
            elif taken:
                self._on_read(taken)

        self._loop.watch(capture.read_end, discard)

    def close(self) -> None:
        """Close all outputs."""
        for capture in list(self._captures):
            self._close(capture)

    def _close(self, capture: OutputCapture) -> None:
        self._loop.unwatch(capture.read_end)
        capture.close()
        self._captures.remove(capture)
