"""Input for a running program."""

import os

from arl_cpu.contract.executor import FeedResult
from arl_cpu.launcher.linux.event_loop import EventLoop
from arl_cpu.launcher.linux.id_ranges import give_file

__all__ = ["StdinFeed"]

_MAX_PENDING_BYTES = 1 << 20
_WRITE_BYTES = 64 << 10
_END_OF_FILE = b"\x04"


class StdinFeed:
    """A bounded buffer of input that never waits for its reader. It writes to a pipe or a terminal."""

    def __init__(
        self, initial: bytes = b"", *, is_terminal: bool = False, max_pending_bytes: int = _MAX_PENDING_BYTES
    ) -> None:
        self._pending = bytearray(initial)
        self._last = initial[-1:]
        self._accepted_bytes, self._max_pending_bytes = 0, max_pending_bytes
        self._unread = bytearray()
        """Bytes written to the terminal before their reader has started."""
        self._is_terminal, self._is_ended, self._is_closed = is_terminal, False, False
        self._write_end, self._loop, self._has_reader = -1, None, True  # type: tuple[int, EventLoop | None, bool]

    def open_pipe(self, loop: EventLoop, owner_uid: int | None) -> int:
        """Create a pipe and return its read end, which the caller closes. The owner may open it by name."""
        read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        if owner_uid is not None:
            give_file(read_end, owner_uid)
        self._loop = loop
        # For a write end the loop only reports that the read end is closed.
        loop.watch(self._write_end, self.close)
        self._continue_writing()
        return read_end

    def attach_terminal(self, terminal: int, loop: EventLoop, peer: int) -> None:
        """Write to a terminal that another object owns and watches. `peer` is the end that programs read.

        Close or detach it before the terminal is closed.
        """
        del peer
        self._write_end, self._loop, self._has_reader = terminal, loop, False
        self._continue_writing()

    def reader_started(self) -> None:
        """Mark the terminal's reader as started: bytes written there count as delivered."""
        self._has_reader = True
        self._unread.clear()

    def detach_terminal(self) -> None:
        """Detach the terminal: its reader will never start. The next reader gets all of the input."""
        if self._loop is not None and not self._is_closed:
            self._loop.watch_writable(self._write_end, None)
        self._pending[:0] = self._unread
        self._unread.clear()
        self._loop, self._is_closed = None, False

    def append(self, data: bytes, *, offset: int | None, end: bool) -> FeedResult:
        """Append all of the data or nothing. Bytes that were accepted before are skipped."""
        if offset is not None and offset > self._accepted_bytes:
            return FeedResult("gap", self._accepted_bytes)
        fresh = data if offset is None else data[self._accepted_bytes - offset :]
        if self._is_ended or self._is_closed:
            # A repeated last request succeeds.
            is_done = offset is not None and not fresh and (self._is_ended or not end)
            return FeedResult("taken" if is_done else "closed", self._accepted_bytes)
        if fresh and len(self._pending) + len(fresh) > self._max_pending_bytes:
            return FeedResult("full", self._accepted_bytes)
        self._pending += fresh
        self._accepted_bytes += len(fresh)
        self._last = fresh[-1:] or self._last
        if end:
            self._finish()
        self._continue_writing()
        return FeedResult("taken", self._accepted_bytes)

    def close(self) -> None:
        """Discard the input: it has no reader, or must not have one."""
        if not self._is_closed and self._loop is not None:
            if self._is_terminal:
                self._loop.watch_writable(self._write_end, None)
            else:
                self._loop.unwatch(self._write_end)
                os.close(self._write_end)
        self._is_closed = True
        self._pending.clear()

    def _finish(self) -> None:
        self._is_ended = True
        if self._is_terminal:
            # The first end of file only completes an unfinished line.
            self._pending += _END_OF_FILE * (1 if self._last in (b"", b"\n") else 2)

    def _continue_writing(self) -> None:
        if self._loop is None or self._is_closed:
            return
        try:
            self._write()
        except BlockingIOError:
            pass  # the rest is written when the program has read some
        except OSError:
            if self._has_reader:
                self.close()
            else:
                self.detach_terminal()
            return
        if not self._pending and self._is_ended:
            self.close()
            return
        self._loop.watch_writable(self._write_end, self._continue_writing if self._pending else None)

    def _write(self) -> None:
        while self._pending:
            written = os.write(self._write_end, self._pending[:_WRITE_BYTES])
            if not self._has_reader:
                self._unread += self._pending[:written]
            del self._pending[:written]
