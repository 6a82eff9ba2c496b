"""Shells that stay open between actions. Each has a terminal, receives commands and reports their exit statuses."""

import fcntl
import os
import re
import secrets
import signal
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from arl_cpu.launcher.linux.event_loop import EventLoop, LoopTimer
from arl_cpu.launcher.linux.id_ranges import give_file
from arl_cpu.launcher.sandbox.stdin_feed import StdinFeed
from arl_cpu.launcher.sandbox.terminal_input import (
    CompleteTerminalInput,
    ReaderWatch,
    modes_with_complete_input,
    modes_without_input,
)

__all__ = [
    "KILLED_STATUS",
    "NO_SHELL_MESSAGE",
    "SHELL_ARGV",
    "SHELL_VARIABLES",
    "UNATTENDED_VARIABLES",
    "ShellSession",
    "TerminalUnavailable",
]

# The shell is interactive, so an interrupt ends the command and not the shell. The shell then runs PROMPT_COMMAND
# before it would prompt. There it reads commands from file 3 as `NUMBER TEXT`. It writes `r:NUMBER` to file 4 when it
# has read one and `NUMBER:STATUS` when that has ended. At its own end it writes `x:NUMBER:STATUS`, with the number of
# the current command, if any. Commands get neither file. Ended jobs are forgotten, so that the next one is %1.
# Functions, aliases, IFS and TMOUT of a command do not affect this, and its tracing is not shown. No shell is above
# this one that could resume it, so it has no `suspend`.
_READ_COMMANDS = r"""[[ ${__tangram+x} ]] && \builtin printf '%s:130\0' "${__tangram%% *}" >&4
\builtin enable -n suspend; \builtin unset HISTFILE __tangram __tangram_now; \builtin export -n PROMPT_COMMAND
\builtin trap '{ \builtin printf "x:%s:%d\0" "${__tangram_now-}" "$?" >&4; } 2>&-' EXIT
while { TMOUT= IFS= \builtin read -r -d '' -u 3 __tangram && __tangram_now="${__tangram%% *}" &&
\builtin printf 'r:%s\0' "$__tangram_now" >&4; } 2>&-; do
\builtin eval "${__tangram#* }" 3<&- 4>&-
{ \builtin printf '%s:%d\0' "$__tangram_now" "$?" >&4; \builtin jobs >/dev/null
\builtin unset __tangram __tangram_now; } 2>&-
done; \builtin exit"""
SHELL_ARGV = ("bash", "--noprofile", "--norc", "--noediting", "-i")
SHELL_VARIABLES = {"PROMPT_COMMAND": _READ_COMMANDS, "TERM": "dumb"}
UNATTENDED_VARIABLES = {
    **dict.fromkeys(("PAGER", "GIT_PAGER", "MANPAGER", "SYSTEMD_PAGER", "AWS_PAGER", "BAT_PAGER", "GH_PAGER"), "cat"),
    **dict.fromkeys(("EDITOR", "VISUAL", "GIT_EDITOR", "GIT_SEQUENCE_EDITOR"), "true"),
    "DEBIAN_FRONTEND": "noninteractive",
    "GIT_TERMINAL_PROMPT": "0",
    "SSH_ASKPASS_REQUIRE": "never",
    "PIP_NO_INPUT": "1",
    "NPM_CONFIG_YES": "true",
}
"""Variables with which programs ask for no input. The template, the environment and the action may change them."""
NO_SHELL_MESSAGE = (
    "a session needs bash, which is not in the PATH of this environment; use argv or source, or another template"
)
KILLED_STATUS = int(signal.SIGKILL)
"""Wait status of a command that did not end by itself."""

_NOT_READ_REASON = "the shell of the session ended before it read the command"
_NOT_ANSWERED_REASON = "the shell of the session did not respond"
_STATUS_MESSAGE = re.compile(rb"r:\d+|\d+:\d{1,3}|x:\d*:\d{1,3}")
_GET_PEER, _GET_SESSION, _SIGNAL_GROUP = 0x5441, 0x5429, 0x40045436
_MAX_STATUS_BYTES = 64
_READ_BYTES = 64 << 10
_DRAIN_LIMIT_S, _LEADER_CHECK_S = 0.2, 1.0
_ROWS_AND_COLUMNS = (50, 200)


class TerminalUnavailable(Exception):
    """A session that could not be opened. The message gives the reason."""


class ShellSession:
    """A shell with a terminal. A command's output is everything that the terminal shows between its start and its end.

    Raises TerminalUnavailable if no terminal can be opened.
    """

    def __init__(self, loop: EventLoop, owner_uid: int | None) -> None:
        self._loop = loop
        self._files: list[int] = []
        # The gateway limits the length of a command.
        self._commands = StdinFeed(max_pending_bytes=sys.maxsize)
        try:
            self._open_terminal(owner_uid)
        except (OSError, termios.error) as failure:
            self._commands.close()
            self._close_files(*self._files)
            raise TerminalUnavailable(f"no terminal is available for a session: {failure}") from failure
        self.is_open = True
        self.not_run_reason: str | None = None
        """Reason why the last command did not run. None if the shell has read it or may have."""
        self.can_retry = False
        """True if the last command certainly did not start and never will."""
        self._has_exited = self._is_dead = False
        self.user: str | None = None
        """User that the shell runs as; None in an environment with one user."""
        self.pid = 0
        """Process id of the shell inside the environment. 0 before the agent has reported it."""
        self._number = 0
        self._partial_status = b""
        self._on_ended: Callable[[int | None], None] | None = None
        self._on_output: Callable[[bytes], None] = _discard_output
        self._stdin_feed: StdinFeed | None = None
        self._reader_watch: ReaderWatch | None = None
        self._drain_marker = b""
        self._unwritten_marker = b""
        self._tail = b""
        self._status: int | None = None
        self._timer: LoopTimer | None = None

    def _open_terminal(self, owner: int | None) -> None:
        self._terminal, self._shell_end = self._track_files(*os.openpty())
        os.set_blocking(self._terminal, False)
        # Open a second file for this end: the shell's must block and this one must not.
        how = os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
        (self._peer,) = self._track_files(fcntl.ioctl(self._terminal, _GET_PEER, how))
        self._modes = _set_terminal_modes(self._peer)
        termios.tcsetwinsize(self._terminal, _ROWS_AND_COLUMNS)
        if owner is not None:
            give_file(self._shell_end, owner)  # allows opening /dev/stdout inside
        self._statuses, self._status_end = self._track_files(*os.pipe())
        os.set_blocking(self._statuses, False)
        (self._commands_end,) = self._track_files(self._commands.open_pipe(self._loop, None))

    def _track_files(self, *files: int) -> tuple[int, ...]:
        """Close these files with the session."""
        self._files += files
        return files

    def _close_files(self, *files: int) -> None:
        for file in files:
            self._files.remove(file)
            os.close(file)

    @property
    def shell_files(self) -> list[int]:
        """The shell's files 0 to 4."""
        return [self._shell_end] * 3 + [self._commands_end, self._status_end]

    def close_shell_files(self) -> None:
        """Close the files that the shell has copies of.

        The terminal's stays open, to restore its blocking mode later.
        """
        self._close_files(self._commands_end, self._status_end)

    def run(
        self,
        command: str,
        on_output: Callable[[bytes], None],
        on_ended: Callable[[int | None], None],
        stdin_feed: StdinFeed | None,
    ) -> None:
        """Run a command. `on_ended` is called once, after the last output, with a wait status.

        The status is None if the shell ended without a report, for example because the command replaced it (`exec`).

        Without a feed, readers see the end of file at once. A retriable command gets its whole feed again.
        """
        self._number += 1
        self._on_output, self._on_ended, self._stdin_feed = on_output, on_ended, stdin_feed
        self._status, self.not_run_reason, self.can_retry = None, _NOT_READ_REASON, False
        try:
            self._prepare_terminal(stdin_feed)
        except (OSError, termios.error) as failure:
            self.not_run_reason, self.can_retry = f"the terminal of the session is no longer usable: {failure}", True
            self.abandon()
            return
        self._loop.watch(self._terminal, self._read)
        self._loop.watch(self._statuses, self._on_status_readable)
        self._timer = self._loop.call_later(_LEADER_CHECK_S, self._check_leader)
        if stdin_feed is not None:
            stdin_feed.attach_terminal(self._terminal, self._loop, self._peer)
        else:
            self._reader_watch = ReaderWatch(self._terminal, self._peer, self._loop)
        text = f"{self._number} {command}".encode(errors="surrogatepass")
        self._commands.append(text + b"\0", offset=None, end=False)

    def _prepare_terminal(self, stdin_feed: StdinFeed | None) -> None:
        """Restore the terminal's initial state. Raises termios.error if programs have made that impossible."""
        os.set_blocking(self._shell_end, True)
        termios.tcflow(self._peer, termios.TCOON)
        termios.tcflush(self._peer, termios.TCIFLUSH)
        if stdin_feed is None:
            modes = modes_without_input(self._modes)
        elif isinstance(stdin_feed, CompleteTerminalInput):
            modes = modes_with_complete_input(self._modes)
        else:
            modes = self._modes
        termios.tcsetattr(self._peer, termios.TCSANOW, modes)

    def has_died(self) -> bool:
        """Return True if the shell died between two commands."""
        self._read_statuses()
        return self._has_exited or self._is_dead or self._has_lost_leader()

    def interrupt(self) -> None:
        """Interrupt as Ctrl-C does, even if a program has disabled that."""
        # The kernel chooses the process group: a group number may be reused before it is signalled.
        with suppress(OSError):
            fcntl.ioctl(self._terminal, _SIGNAL_GROUP, signal.SIGINT)

    def abandon(self) -> None:
        """End the command and the session without a response of the shell."""
        if self._on_ended is not None and self._status is None:
            self._read_statuses()
            if self.not_run_reason is _NOT_READ_REASON:
                self.not_run_reason = _NOT_ANSWERED_REASON
            self._status = KILLED_STATUS
            self.close()

    def close(self) -> None:
        """Hang up the terminal. A running command ends with the status known so far."""
        if not self.is_open:
            return
        self.is_open = False
        self._stop_watching()
        self._commands.close()
        self._close_files(*self._files)
        self._notify_end()

    def _on_status_readable(self) -> None:
        self._read_statuses()
        if self._is_dead and not self._has_exited:
            # The shell has closed its files. A program that it executed in its place may use the terminal.
            self._loop.unwatch(self._statuses)
            self._has_exited = self._has_lost_leader()
        if (self._status is not None or self._has_exited) and not self._drain_marker:
            self._start_drain()

    def _read_statuses(self) -> None:
        try:
            said = os.read(self._statuses, _READ_BYTES)
        except BlockingIOError:
            return
        *whole, self._partial_status = (self._partial_status + said).split(b"\0")
        for each in whole:
            self._handle_status(each)
        # Only the shell has the other end, and its messages are short unless a program forged them.
        self._is_dead |= not said
        self._has_exited |= len(self._partial_status) > _MAX_STATUS_BYTES
        self._partial_status = self._partial_status[:_MAX_STATUS_BYTES]

    def _handle_status(self, message: bytes) -> None:
        own = b"%d" % self._number
        # Other messages come from a program and may hide those of the shell.
        if message == b"r:" + own or not _STATUS_MESSAGE.fullmatch(message):
            self._mark_command_read()
        number, _, status = message.removeprefix(b"x:").partition(b":")
        if number == own and status.isdigit() and len(status) <= 3:
            self._mark_command_read()
            self._status = (int(status) & 0xFF) << 8
        self._has_exited |= message.startswith(b"x:")

    def _mark_command_read(self) -> None:
        if self.not_run_reason is not None:
            self.not_run_reason = None
            if self._stdin_feed is not None:
                self._stdin_feed.reader_started()

    def _has_lost_leader(self) -> bool:
        """Return True if the shell has ended: the kernel then removes its terminal's session, even if others have it
        open.
        """
        try:
            fcntl.ioctl(self._terminal, _GET_SESSION, bytes(4))
        except OSError:
            return True
        return False

    def _check_leader(self) -> None:
        """Check the shell periodically: a background job may keep the shell's files open after its end."""
        self._timer = self._loop.call_later(_LEADER_CHECK_S, self._check_leader)
        self._has_exited |= self._has_lost_leader()
        self._on_status_readable()

    def _start_drain(self) -> None:
        """Write a marker to the terminal. All output before the end of the command precedes it."""
        self._drain_marker = self._unwritten_marker = secrets.token_hex(16).encode()
        self._loop.unwatch(self._statuses)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_DRAIN_LIMIT_S, self._finish_drain)
        self._read()

    def _read(self) -> None:
        self._write_marker()
        try:
            data = self._tail + os.read(self._terminal, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            # Hung up: the shell has ended, even if others have its files open. It may have reported before.
            self._read_statuses()
            self._has_exited = self._is_dead = True
            self._finish_drain()
            return
        self._tail = b""
        if not self._drain_marker:
            self._on_output(data)
            return
        shown, mark, _ = data.partition(self._drain_marker)
        if mark:
            self._on_output(shown)
            self._finish_drain()
            return
        kept = min(len(self._drain_marker) - 1, len(data))
        self._tail = data[len(data) - kept :]
        self._on_output(data[: len(data) - kept])

    def _write_marker(self) -> None:
        """Write the marker. If output is stopped or blocks it, the time limit ends the drain."""
        if self._unwritten_marker:
            with suppress(OSError):
                self._unwritten_marker = self._unwritten_marker[os.write(self._peer, self._unwritten_marker) :]

    def _finish_drain(self) -> None:
        if self._tail:
            self._on_output(self._tail)
        if self._has_exited:
            # Any other report of the end may be forged by a program that is still running.
            self._read_statuses()
            is_unread = self.not_run_reason is not None and not self._partial_status
            self.can_retry = is_unread and (self._is_dead or self._has_lost_leader())
        self._stop_watching()
        if self._has_exited:
            self.close()
        self._notify_end()

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._reader_watch is not None:
            self._reader_watch.close()
            self._reader_watch = None
        if self._stdin_feed is not None and self.can_retry:
            self._stdin_feed.detach_terminal()
        elif self._stdin_feed is not None:
            self._stdin_feed.close()
        self._loop.unwatch(self._terminal)
        self._loop.unwatch(self._statuses)
        self._drain_marker = self._unwritten_marker = self._tail = b""
        self._timer = self._stdin_feed = None

    def _notify_end(self) -> None:
        ended, self._on_ended = self._on_ended, None
        if ended is not None:
            ended(self._status)


def _discard_output(_data: bytes) -> None:
    """Discard output between two commands."""


def _set_terminal_modes(terminal: int) -> list[Any]:
    """Turn off echo, and end lines with a newline only."""
    modes = termios.tcgetattr(terminal)
    modes[1] &= ~termios.ONLCR
    modes[3] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSANOW, modes)
    return modes
