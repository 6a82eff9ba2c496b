"""Input for a program while it runs."""

import os

from arl_cpu.executor import Fed

from .loop import Loop

__all__ = ["Feed"]

_MOST_PENDING = 1 << 20
_WRITE_BYTES = 64 << 10
_END_OF_TYPING = b"\x04"


class Feed:
    """Takes bytes as long as few wait, and never waits for who reads them: by a pipe, or typed into a terminal."""

    def __init__(self, first: bytes = b"", *, is_typed: bool = False, is_all: bool = False) -> None:
        self._pending = bytearray(first)
        self._last = first[-1:]
        self._taken = 0
        self._unread = bytearray()
        """Typed, but whoever shall read it has not begun."""
        self._is_typed, self._is_ended, self._is_closed = is_typed, False, False
        self._end, self._loop, self._has_reader = -1, None, True  # type: tuple[int, Loop | None, bool]
        if is_all:
            self._finish()

    def open(self, loop: Loop, owner: int | None) -> int:
        """A pipe's read end, for the program, who may open it by name if it is the owner's; the caller closes it."""
        read_end, self._end = os.pipe()
        os.set_blocking(self._end, False)
        if owner is not None:
            os.fchown(read_end, owner, -1)
        self._loop = loop
        # Of a write end the loop tells only that nobody has the other one any more.
        loop.watch(self._end, self.close)
        self._write_on()
        return read_end

    def type_into(self, terminal: int, loop: Loop) -> None:
        """Somebody else's file, which does not block and is watched already; to be closed or left before that ends."""
        self._end, self._loop, self._has_reader = terminal, loop, False
        self._write_on()

    def was_begun(self) -> None:
        """Whoever reads the terminal has: what is typed there counts as given."""
        self._has_reader = True
        self._unread.clear()

    def leave(self) -> None:
        """The terminal: who was meant to read it never begins. The next one gets all of it."""
        if self._loop is not None and not self._is_closed:
            self._loop.watch_writable(self._end, None)
        self._pending[:0] = self._unread
        self._unread.clear()
        self._loop, self._is_closed = None, False

    def take(self, data: bytes, *, offset: int | None, end: bool) -> Fed:
        """All of it or nothing; what the program was given before is not given to it again."""
        if offset is not None and offset > self._taken:
            return Fed("gap", self._taken)
        fresh = data if offset is None else data[self._taken - offset :]
        if self._is_ended or self._is_closed:
            # A repeated last request finds what it asked for.
            is_done = offset is not None and not fresh and (self._is_ended or not end)
            return Fed("taken" if is_done else "closed", self._taken)
        if fresh and len(self._pending) + len(fresh) > _MOST_PENDING:
            return Fed("full", self._taken)
        self._pending += fresh
        self._taken += len(fresh)
        self._last = fresh[-1:] or self._last
        if end:
            self._finish()
        self._write_on()
        return Fed("taken", self._taken)

    def close(self) -> None:
        """Nobody reads it, or nobody should."""
        if not self._is_closed and self._loop is not None:
            if self._is_typed:
                self._loop.watch_writable(self._end, None)
            else:
                self._loop.unwatch(self._end)
                os.close(self._end)
        self._is_closed = True
        self._pending.clear()

    def _finish(self) -> None:
        self._is_ended = True
        if self._is_typed:
            # The first one only completes a line that was begun.
            self._pending += _END_OF_TYPING * (1 if self._last in (b"", b"\n") else 2)

    def _write_on(self) -> None:
        if self._loop is None or self._is_closed:
            return
        try:
            self._write()
        except BlockingIOError:
            pass  # the rest goes when the program has read some
        except OSError:
            if self._has_reader:
                self.close()
            else:
                self.leave()
            return
        if not self._pending and self._is_ended:
            self.close()
            return
        self._loop.watch_writable(self._end, self._write_on if self._pending else None)

    def _write(self) -> None:
        while self._pending:
            written = os.write(self._end, self._pending[:_WRITE_BYTES])
            if not self._has_reader:
                self._unread += self._pending[:written]
            del self._pending[:written]
