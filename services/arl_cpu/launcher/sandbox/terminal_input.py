"""Input of a command in a session: complete input that is known in advance, or none."""

import fcntl
import os
import select
import signal
import struct
import termios
from contextlib import suppress
from typing import Any

from arl_cpu.launcher.linux.event_loop import EventLoop, LoopTimer
from arl_cpu.launcher.linux.waiting_processes import is_waiting_for_keys
from arl_cpu.launcher.sandbox.stdin_feed import StdinFeed

__all__ = ["CompleteTerminalInput", "ReaderWatch", "modes_with_complete_input", "modes_without_input"]

_EXTPROC = 0x10000
"""Local mode of Linux: lines and control characters are processed by the other end of the terminal."""
_END_OF_FILE = b"\x04"
_MAX_BUFFERED_BYTES = 3000
"""Bytes in a terminal that no reader has taken. The kernel drops bytes above 4095."""
_STEP_S, _MAX_STEP_S = 0.002, 0.05
"""Seconds between two looks at the terminal: while it takes input, and while nothing reads."""
_READER_CHECK_S = 0.15
_CHECKS_BEFORE_HANGUP, _CHECKS_BEFORE_KILL = 6, 14
_KEYS = (_END_OF_FILE, b"q")
"""Keys that end interpreters, and then pagers and monitors."""
_GET_SESSION = 0x5429


class CompleteTerminalInput(StdinFeed):
    """Input that is complete before its command runs. It arrives whole, whatever its bytes and the length of its lines.

    A terminal in its usual mode cuts lines above 4095 bytes and interprets control characters.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__(content, is_terminal=True)
        self._is_ended = True
        self._terminal = self._peer = -1
        self._timer: LoopTimer | None = None
        self._delay_s = _STEP_S

    def attach_terminal(self, terminal: int, loop: EventLoop, peer: int) -> None:
        """Write to a terminal that another object owns. `peer` is the end that programs read."""
        self._terminal, self._peer, self._loop, self._has_reader = terminal, peer, loop, False
        self._delay_s = _STEP_S
        self._step()

    def detach_terminal(self) -> None:
        """Detach the terminal: its reader will never start. The next reader gets all of the input."""
        self._cancel_timer()
        self._pending[:0] = self._unread
        self._unread.clear()
        self._loop, self._is_closed = None, False

    def close(self) -> None:
        """Discard the rest of the input."""
        self._cancel_timer()
        self._is_closed = True
        self._pending.clear()

    def _continue_writing(self) -> None:
        """Do nothing: the steps write."""

    def _step(self) -> None:
        """Write as much as the terminal can hold. After the last byte, every read finds the end of file."""
        if self._loop is None or self._is_closed:
            return
        try:
            buffered = _buffered_bytes(self._peer)
            self._delay_s = min(_MAX_STEP_S, 2 * self._delay_s)
            if self._pending:
                self._delay_s = _STEP_S
                self._write_some(_MAX_BUFFERED_BYTES - buffered)
            elif buffered == 0:
                # Alone in the terminal, the character is the end of file. Anywhere else it is data.
                os.write(self._terminal, _END_OF_FILE)
                self._delay_s = _STEP_S
        except BlockingIOError:
            pass
        except (OSError, termios.error):
            if self._has_reader:
                self.close()
            else:
                self.detach_terminal()
            return
        self._timer = self._loop.call_later(self._delay_s, self._step)

    def _write_some(self, room: int) -> None:
        if room <= 0:
            return
        written = os.write(self._terminal, self._pending[:room])
        if not self._has_reader:
            self._unread += self._pending[:written]
        del self._pending[:written]

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class ReaderWatch:
    """A watch on programs that wait for keys at a terminal without input, such as editors and pagers.

    A program that reads sees the end of file. One that has changed the terminal's modes to wait for keys gets the keys
    Ctrl-D and `q`, and then a hang-up, like a program whose terminal is closed.
    """

    def __init__(self, terminal: int, peer: int, loop: EventLoop) -> None:
        self._terminal, self._peer, self._loop = terminal, peer, loop
        self._checks = 0
        self._timer: LoopTimer | None = loop.call_later(_READER_CHECK_S, self._check)

    def close(self) -> None:
        """End the watch."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer = self._loop.call_later(_READER_CHECK_S, self._check)
        with suppress(OSError, termios.error):
            if not _waits_for_keys(termios.tcgetattr(self._peer)):
                self._checks = 0
                return
            group, shell = os.tcgetpgrp(self._terminal), self._shell()
            if group != shell and not is_waiting_for_keys(group):
                self._checks = 0
                return
            self._checks += 1
            if self._checks <= len(_KEYS) or group == shell:
                os.write(self._terminal, _KEYS[(self._checks - 1) % len(_KEYS)])
            elif self._checks > _CHECKS_BEFORE_HANGUP:
                self._hang_up(group, signal.SIGHUP if self._checks < _CHECKS_BEFORE_KILL else signal.SIGKILL)

    def _shell(self) -> int:
        """Return the process id of the shell, whose group has the same number."""
        (session,) = struct.unpack("i", fcntl.ioctl(self._terminal, _GET_SESSION, bytes(4)))
        return int(session)

    def _hang_up(self, group: int, number: signal.Signals) -> None:
        """End the programs in the foreground, if they still are."""
        if os.tcgetpgrp(self._terminal) == group:
            os.killpg(group, number)
            os.killpg(group, signal.SIGCONT)


def modes_with_complete_input(modes: list[Any]) -> list[Any]:
    """Return modes in which input arrives unchanged, and a single Ctrl-D is the end of file."""
    iflag, oflag, cflag, lflag, *rest = modes
    iflag &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR | termios.ISTRIP | termios.IXON)
    return [iflag, oflag, cflag, lflag | termios.ICANON | _EXTPROC, *rest]


def modes_without_input(modes: list[Any]) -> list[Any]:
    """Return modes in which every read returns end of file at once. It remains a terminal."""
    iflag, oflag, cflag, lflag, ispeed, ospeed, characters = modes
    characters = [*characters]
    characters[termios.VMIN] = characters[termios.VTIME] = 0
    return [iflag, oflag, cflag, lflag & ~(termios.ICANON | _EXTPROC), ispeed, ospeed, characters]


def _waits_for_keys(modes: list[Any]) -> bool:
    """Return True if a read would wait. Sessions without input begin in modes in which no read waits."""
    return bool(modes[3] & termios.ICANON) or modes[6][termios.VMIN] not in (0, b"\x00")


def _buffered_bytes(terminal: int) -> int:
    """Return the bytes that programs have not read.

    The kernel moves written bytes to the reader's end in the background. Polling that end completes this first.
    """
    poller = select.poll()
    poller.register(terminal, select.POLLIN)
    poller.poll(0)
    (count,) = struct.unpack("i", fcntl.ioctl(terminal, termios.FIONREAD, bytes(4)))
    return int(count)
