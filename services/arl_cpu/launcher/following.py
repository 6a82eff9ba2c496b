"""Whoever wants to see what an attempt writes while it writes it."""

from collections.abc import Callable

from arl_cpu.executor import Output, Portion

__all__ = ["Answer", "Followers", "Offsets"]

Offsets = tuple[int, int]
"""Into stdout and stderr."""
Answer = Callable[[Output | None], None]


class Followers:
    """Questions that wait for output. Each is answered once, and who wants more asks again.

    So nothing is kept for a slow reader: the attempt's own bytes are here, and he says from where. An attempt that
    nobody asks about pays for one look at an empty dictionary a read.
    """

    def __init__(self, *streams: Callable[[int], Portion]) -> None:
        self._streams = streams
        self._waiting: dict[Answer, Offsets] = {}

    def ask(self, after: Offsets, answer: Answer) -> Callable[[], None]:
        """What comes back withdraws it."""
        if not self._answered(after, answer, ended=False):
            self._waiting[answer] = after
        return lambda: self._withdraw(answer)

    def tell(self, *, ended: bool = False) -> None:
        """There may be something new."""
        if not self._waiting:
            return
        for answer, after in list(self._waiting.items()):
            if self._answered(after, answer, ended=ended):
                self._withdraw(answer)

    def _answered(self, after: Offsets, answer: Answer, *, ended: bool) -> bool:
        stdout, stderr = (portion(offset) for portion, offset in zip(self._streams, after, strict=True))
        if not (ended or stdout.is_news or stderr.is_news):
            return False
        answer(Output(stdout, stderr, ended))
        return True

    def _withdraw(self, answer: Answer) -> None:
        self._waiting.pop(answer, None)
