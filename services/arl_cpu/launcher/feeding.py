"""Input for a program while it runs."""

import os

from arl_cpu.executor import Fed

from .loop import Loop

__all__ = ["Feed"]

_MOST_PENDING = 1 << 20
_WRITE_BYTES = 64 << 10


class Feed:
    """The write end of a program's standard input: takes bytes as long as few wait, and never waits for the reader."""

    def __init__(self, first: bytes) -> None:
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        self._pending = bytearray(first)
        self._taken = 0
        self._is_ended = False
        self._loop: Loop | None = None

    def open(self, loop: Loop, owner: int | None) -> int:
        """The read end, for the program, who may open it by name if it is the owner's; the caller closes it."""
        read_end, self._read_end = self._read_end, -1
        if owner is not None:
            os.fchown(read_end, owner, -1)
        self._loop = loop
        # Of a write end the loop tells only that nobody has the other one any more.
        loop.watch(self._write_end, self.close)
        self._write_on()
        return read_end

    def take(self, data: bytes, *, offset: int | None, end: bool) -> Fed:
        """All of it or nothing; what the program was given before is not given to it again."""
        if offset is not None and offset > self._taken:
            return Fed("gap", self._taken)
        fresh = data if offset is None else data[self._taken - offset :]
        if self._is_ended or self._write_end < 0:
            # A repeated last request finds what it asked for.
            is_done = offset is not None and not fresh and (self._is_ended or not end)
            return Fed("taken" if is_done else "closed", self._taken)
        if fresh and len(self._pending) + len(fresh) > _MOST_PENDING:
            return Fed("full", self._taken)
        self._pending += fresh
        self._taken += len(fresh)
        self._is_ended = end
        self._write_on()
        return Fed("taken", self._taken)

    def close(self) -> None:
        """Nobody reads it, or nobody should."""
        if self._write_end >= 0:
            if self._loop is not None:
                self._loop.unwatch(self._write_end)
            os.close(self._write_end)
            self._write_end = -1
        if self._read_end >= 0:
            os.close(self._read_end)
            self._read_end = -1
        self._pending.clear()

    def _write_on(self) -> None:
        if self._loop is None:
            return
        try:
            self._write()
        except BlockingIOError:
            pass  # the rest goes when the program has read some
        except BrokenPipeError:
            self.close()
            return
        if not self._pending and self._is_ended:
            self.close()
            return
        self._loop.watch_writable(self._write_end, self._write_on if self._pending else None)

    def _write(self) -> None:
        while self._pending:
            del self._pending[: os.write(self._write_end, self._pending[:_WRITE_BYTES])]
