"""Shells that stay open between actions: each has a terminal, is given commands, and tells how they ended."""

import fcntl
import os
import re
import secrets
import signal
import termios
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .feeding import Feed
from .loop import Loop, Timer

__all__ = ["ARGV", "KILLED", "NO_SHELL", "VARIABLES", "NoTerminal", "Session"]

# Interactive, so that an interrupt ends the command and not the shell, which then asks what to do before it would
# prompt: there it reads commands from file 3, `NUMBER TEXT`, and writes to file 4 `r:NUMBER` when it has read one,
# `NUMBER:STATUS` when that has ended, and at its own end `x:NUMBER:STATUS` with the number of the command it was in, if
# it was in any. Commands get neither file. Ended jobs are forgotten, so that the next one is %1. Functions, aliases,
# IFS and TMOUT of a command change nothing of this, and what it traces is not shown.
_READ_COMMANDS = r"""[[ ${__tangram+x} ]] && \builtin printf '%s:130\0' "${__tangram%% *}" >&4
\builtin unset HISTFILE __tangram __tangram_now; \builtin export -n PROMPT_COMMAND
\builtin trap '\builtin printf "x:%s:%d\0" "${__tangram_now-}" "$?" >&4' EXIT
while { TMOUT= IFS= \builtin read -r -d '' -u 3 __tangram && __tangram_now="${__tangram%% *}" &&
\builtin printf 'r:%s\0' "$__tangram_now" >&4; } 2>&-; do
\builtin eval "${__tangram#* }" 3<&- 4>&-
{ \builtin printf '%s:%d\0' "$__tangram_now" "$?" >&4; \builtin jobs >/dev/null
\builtin unset __tangram __tangram_now; } 2>&-
done; \builtin exit"""
ARGV = ("bash", "--noprofile", "--norc", "--noediting", "-i")
VARIABLES = {"PROMPT_COMMAND": _READ_COMMANDS, "TERM": "dumb"}
NO_SHELL = "a session needs bash, and this environment has none in its PATH; use argv or source, or another template"
KILLED = int(signal.SIGKILL)
"""The wait status of what did not end by itself."""

_NOT_READ = "its shell ended before it read it"
_NOT_ANSWERED = "its shell did not answer"
_WELL_FORMED = re.compile(rb"r:\d+|\d+:\d{1,3}|x:\d*:\d{1,3}")
_GET_PEER, _GET_SESSION, _SIGNAL_GROUP = 0x5441, 0x5429, 0x40045436
_LONGEST_STATUS = 64
_READ_BYTES = 64 << 10
_DRAIN_LIMIT_S, _LOOK_S = 0.2, 1.0
_ROWS_AND_COLUMNS = (50, 200)


class NoTerminal(Exception):
    """The message says why a session could not be opened."""


class Session:
    """One shell. Its command's output is everything that the terminal shows from its beginning to its end.

    Raises NoTerminal where there is none to be had.
    """

    def __init__(self, loop: Loop, owner: int | None) -> None:
        self._loop = loop
        self._files: list[int] = []
        self._commands = Feed()
        try:
            self._open(owner)
        except (OSError, termios.error) as failure:
            self._commands.close()
            self._close_files(*self._files)
            raise NoTerminal(f"there is no terminal to be had for a session: {failure}") from failure
        self.is_open = True
        self.why_not_run: str | None = None
        """Of the last command, unless its shell has read it, or may have."""
        self.can_run_elsewhere = False
        """The last command was certainly not begun, and never will be."""
        self._has_exited = self._is_dead = False
        self._number = 0
        self._heard = b""
        self._ended: Callable[[int], None] | None = None
        self._show: Callable[[bytes], None] = _nobody
        self._feed: Feed | None = None
        self._mark = b""
        self._mark_to_write = b""
        self._tail = b""
        self._status: int | None = None
        self._limit: Timer | None = None

    def _open(self, owner: int | None) -> None:
        self._terminal, self._shells_end = self._keep(*os.openpty())
        os.set_blocking(self._terminal, False)
        # Ours is another file than the shell's, which has to block.
        how = os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
        (self._peer,) = self._keep(fcntl.ioctl(self._terminal, _GET_PEER, how))
        self._modes = _modes_of(self._peer)
        termios.tcsetwinsize(self._terminal, _ROWS_AND_COLUMNS)
        if owner is not None:
            os.fchown(self._shells_end, owner, -1)  # so that /dev/stdout can be opened inside
        self._statuses, self._status_end = self._keep(*os.pipe())
        os.set_blocking(self._statuses, False)
        (self._commands_end,) = self._keep(self._commands.open(self._loop, None))

    def _keep(self, *files: int) -> tuple[int, ...]:
        """Until the session is closed."""
        self._files += files
        return files

    def _close_files(self, *files: int) -> None:
        for file in files:
            self._files.remove(file)
            os.close(file)

    @property
    def ends(self) -> list[int]:
        """What the shell gets as its files 0 to 4."""
        return [self._shells_end] * 3 + [self._commands_end, self._status_end]

    def handed_over(self) -> None:
        """The shell has its own copies. The terminal's is kept: whether it blocks is a matter of all its copies."""
        self._close_files(self._commands_end, self._status_end)

    def run(self, command: str, show: Callable[[bytes], None], ended: Callable[[int], None], feed: Feed | None) -> None:
        """`ended` is called once, with a wait status, after the last output was shown.

        Without a feed whoever reads is at the end. A command that can run elsewhere has its whole feed there.
        """
        self._number += 1
        self._show, self._ended, self._feed = show, ended, feed
        self._status, self.why_not_run, self.can_run_elsewhere = None, _NOT_READ, False
        try:
            self._prepare_terminal(has_input=feed is not None)
        except (OSError, termios.error) as failure:
            self.why_not_run, self.can_run_elsewhere = f"its terminal cannot be used any more: {failure}", True
            self.give_up()
            return
        self._loop.watch(self._terminal, self._read)
        self._loop.watch(self._statuses, self._hear)
        self._limit = self._loop.after(_LOOK_S, self._look)
        if feed is not None:
            feed.type_into(self._terminal, self._loop)
        text = f"{self._number} {command}".encode(errors="surrogatepass")
        self._commands.take(text + b"\0", offset=None, end=False)

    def _prepare_terminal(self, *, has_input: bool) -> None:
        """As it was for the first command. Raises termios.error where programs have made something else of it."""
        os.set_blocking(self._shells_end, True)
        termios.tcflow(self._peer, termios.TCOON)
        termios.tcflush(self._peer, termios.TCIFLUSH)
        termios.tcsetattr(self._peer, termios.TCSANOW, self._modes if has_input else _without_input(self._modes))

    def has_died(self) -> bool:
        """Between two commands."""
        self._take_statuses()
        return self._has_exited or self._has_no_leader()

    def interrupt(self) -> None:
        """As Ctrl-C does, also where a program has turned that off."""
        # By the kernel: the number of a group may be another's by the time that it is used.
        with suppress(OSError):
            fcntl.ioctl(self._terminal, _SIGNAL_GROUP, signal.SIGINT)

    def give_up(self) -> None:
        """The shell does not answer: end the command without it, and the session."""
        if self._ended is not None and self._status is None:
            self._take_statuses()
            if self.why_not_run is _NOT_READ:
                self.why_not_run = _NOT_ANSWERED
            self._status = KILLED
            self.close()

    def close(self) -> None:
        """The shell is hung up on. A command that runs has ended with what is known."""
        if not self.is_open:
            return
        self.is_open = False
        self._stop_watching()
        self._commands.close()
        self._close_files(*self._files)
        self._tell_end()

    def _hear(self) -> None:
        self._take_statuses()
        if self._has_exited and self._status is None:
            self._status = KILLED
        if self._status is not None and not self._mark:
            self._begin_to_drain()

    def _take_statuses(self) -> None:
        try:
            said = os.read(self._statuses, _READ_BYTES)
        except BlockingIOError:
            return
        *whole, self._heard = (self._heard + said).split(b"\0")
        for each in whole:
            self._take_status(each)
        # Only the shell has the other end, and it says nothing long unless it was made to.
        self._is_dead |= not said
        self._has_exited |= not said or len(self._heard) > _LONGEST_STATUS
        self._heard = self._heard[:_LONGEST_STATUS]

    def _take_status(self, said: bytes) -> None:
        own = b"%d" % self._number
        # What a program wrote there may hide what the shell says.
        if said == b"r:" + own or not _WELL_FORMED.fullmatch(said):
            self._was_read()
        number, _, status = said.removeprefix(b"x:").partition(b":")
        if number == own and status.isdigit() and len(status) <= 3:
            self._was_read()
            self._status = (int(status) & 0xFF) << 8
        self._has_exited |= said.startswith(b"x:")

    def _was_read(self) -> None:
        if self.why_not_run is not None:
            self.why_not_run = None
            if self._feed is not None:
                self._feed.was_begun()

    def _has_no_leader(self) -> bool:
        """That was the shell: the kernel takes its terminal's session away, whoever else has its files."""
        try:
            fcntl.ioctl(self._terminal, _GET_SESSION, bytes(4))
        except OSError:
            return True
        return False

    def _look(self) -> None:
        """A job that was left behind may hide the end of the shell's files."""
        self._limit = self._loop.after(_LOOK_S, self._look)
        self._has_exited |= self._has_no_leader()
        self._hear()

    def _begin_to_drain(self) -> None:
        """What the terminal was given before its end comes out of it in time: up to a mark that we give it now."""
        self._mark = self._mark_to_write = secrets.token_hex(16).encode()
        self._loop.unwatch(self._statuses)
        if self._limit is not None:
            self._limit.cancel()
        self._limit = self._loop.after(_DRAIN_LIMIT_S, self._drained)
        self._read()

    def _read(self) -> None:
        self._write_mark()
        try:
            data = self._tail + os.read(self._terminal, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            # Hung up: the shell is gone, whoever else has its files. It may have told before.
            self._take_statuses()
            self._has_exited = self._is_dead = True
            self._drained()
            return
        self._tail = b""
        if not self._mark:
            self._show(data)
            return
        shown, mark, _ = data.partition(self._mark)
        if mark:
            self._show(shown)
            self._drained()
            return
        kept = min(len(self._mark) - 1, len(data))
        self._tail = data[len(data) - kept :]
        self._show(data[: len(data) - kept])

    def _write_mark(self) -> None:
        """Where output stands still, or is in the way, the time limit ends it."""
        if self._mark_to_write:
            with suppress(OSError):
                self._mark_to_write = self._mark_to_write[os.write(self._peer, self._mark_to_write) :]

    def _drained(self) -> None:
        if self._tail:
            self._show(self._tail)
        if self._has_exited:
            # Whatever else says that it ended may be forged, by a program that it outlives.
            self._take_statuses()
            is_unread = self.why_not_run is not None and not self._heard
            self.can_run_elsewhere = is_unread and (self._is_dead or self._has_no_leader())
        self._stop_watching()
        if self._has_exited:
            self.close()
        self._tell_end()

    def _stop_watching(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
        if self._feed is not None and self.can_run_elsewhere:
            self._feed.leave()
        elif self._feed is not None:
            self._feed.close()
        self._loop.unwatch(self._terminal)
        self._loop.unwatch(self._statuses)
        self._mark = self._mark_to_write = self._tail = b""
        self._limit = self._feed = None

    def _tell_end(self) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(KILLED if self._status is None else self._status)


def _nobody(_data: bytes) -> None:
    """Between two commands nobody looks."""


def _modes_of(terminal: int) -> list[Any]:
    """No echo, and a line ends with a newline alone."""
    modes = termios.tcgetattr(terminal)
    modes[1] &= ~termios.ONLCR
    modes[3] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSANOW, modes)
    return modes


def _without_input(modes: list[Any]) -> list[Any]:
    """Whoever reads finds the end at once, each time: it is still a terminal, but one that does not wait."""
    iflag, oflag, cflag, lflag, ispeed, ospeed, characters = modes
    characters = [*characters]
    characters[termios.VMIN] = characters[termios.VTIME] = 0
    return [iflag, oflag, cflag, lflag & ~termios.ICANON, ispeed, ospeed, characters]
