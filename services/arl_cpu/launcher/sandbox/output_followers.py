"""Subscriptions to the output of an attempt while it runs."""

from collections.abc import Callable

from arl_cpu.contract.executor import CapturedChunk, CapturedOutput

__all__ = ["OutputCallback", "OutputFollowers", "OutputOffsets"]

OutputOffsets = tuple[int, int]
"""Offsets into stdout and stderr."""
OutputCallback = Callable[[CapturedOutput | None], None]


class OutputFollowers:
    """The pending requests for output. Each is answered once; the client repeats it for more.

    Nothing is buffered for a slow reader: the attempt retains the bytes and the request has offsets. An attempt without
    requests costs one check of an empty dictionary for each read.
    """

    def __init__(self, *streams: Callable[[int], CapturedChunk]) -> None:
        self._streams = streams
        self._waiting: dict[OutputCallback, OutputOffsets] = {}

    def subscribe(self, after: OutputOffsets, callback: OutputCallback) -> Callable[[], None]:
        """Add a request. Return a function that cancels it."""
        if not self._try_respond(after, callback, ended=False):
            self._waiting[callback] = after
        return lambda: self._unsubscribe(callback)

    def notify(self, *, ended: bool = False) -> None:
        """Answer the requests for which there is new output."""
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
