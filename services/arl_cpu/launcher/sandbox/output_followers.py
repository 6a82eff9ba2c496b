"""Whoever wants to see what an attempt writes while it writes it."""

from collections.abc import Callable

from arl_cpu.contract.executor import CapturedChunk, CapturedOutput

__all__ = ["OutputCallback", "OutputFollowers", "OutputOffsets"]

OutputOffsets = tuple[int, int]
"""Into stdout and stderr."""
OutputCallback = Callable[[CapturedOutput | None], None]


class OutputFollowers:
    """Questions that wait for output. Each is answered once, and who wants more asks again.

    So nothing is kept for a slow reader: the attempt's own bytes are here, and he says from where. An attempt that
    nobody asks about pays for one look at an empty dictionary a read.
    """

    def __init__(self, *streams: Callable[[int], CapturedChunk]) -> None:
        self._streams = streams
        self._waiting: dict[OutputCallback, OutputOffsets] = {}

    def subscribe(self, after: OutputOffsets, callback: OutputCallback) -> Callable[[], None]:
        """What comes back withdraws it."""
        if not self._try_respond(after, callback, ended=False):
            self._waiting[callback] = after
        return lambda: self._unsubscribe(callback)

    def notify(self, *, ended: bool = False) -> None:
        """There may be something new."""
        if not self._waiting:
            return
        for answer, after in list(self._waiting.items()):
            if self._try_respond(after, answer, ended=ended):
                self._unsubscribe(answer)

    def _try_respond(self, after: OutputOffsets, callback: OutputCallback, *, ended: bool) -> bool:
        stdout, stderr = (portion(offset) for portion, offset in zip(self._streams, after, strict=True))
        if not (ended or stdout.has_new_output or stderr.has_new_output):
            return False
        callback(CapturedOutput(stdout, stderr, ended))
        return True

    def _unsubscribe(self, callback: OutputCallback) -> None:
        self._waiting.pop(callback, None)
