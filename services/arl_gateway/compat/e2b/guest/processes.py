"""Processes of a sandbox with their buffered events, which wait for the next action to carry them."""

from __future__ import annotations

import base64
import fcntl
import os
import signal
import struct
import subprocess
import termios
import time
from typing import Any

from arl_gateway.compat.e2b.guest.accounts import Account, find_account
from arl_gateway.compat.e2b.guest.event_buffer import EventBuffer
from arl_gateway.compat.e2b.guest.file_operations import GuestError, resolve_path

__all__ = ["SIGNALS", "GuestProcess", "start"]

CHUNK_BYTES = 32 << 10
SIGNALS = {"SIGNAL_SIGKILL": signal.SIGKILL, "SIGNAL_SIGTERM": signal.SIGTERM}
SIGNAL_TEXTS: dict[int, str] = {
    signal.SIGHUP: "hangup", signal.SIGINT: "interrupt", signal.SIGQUIT: "quit", signal.SIGABRT: "aborted",
    signal.SIGKILL: "killed", signal.SIGSEGV: "segmentation fault", signal.SIGPIPE: "broken pipe",
    signal.SIGTERM: "terminated", signal.SIGUSR1: "user defined signal 1", signal.SIGUSR2: "user defined signal 2",
}  # fmt: skip


class GuestProcess(EventBuffer):
    """A started process."""

    def __init__(self, child: subprocess.Popen[bytes], config: dict[str, Any], timeout_s: float) -> None:
        super().__init__(child.pid)
        self.child, self.config = child, config
        self.deadline = time.monotonic() + timeout_s if timeout_s > 0 else None
        self.stdin: int | None = None
        self.pty: int | None = None
        self.closes_stdin = False
        self.is_cut = False
        """True after a kill by the client or by the time limit: open outputs no longer delay the end."""

    def read_output(self, fd: int) -> None:
        """Read from an output, and close it at its end."""
        name = self.outputs[fd]
        try:
            data = os.read(fd, CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # a terminal without a program
        if data:
            self.add({"data": {name: base64.b64encode(data).decode()}}, len(data))
            return
        del self.outputs[fd]
        os.close(fd)
        if fd == self.pty:
            self.pty = None

    def feed(self, data: bytes) -> None:
        """Queue input. Raises GuestError if the process has no open input."""
        if self.has_ended or (self.stdin is None and self.pty is None) or self.closes_stdin:
            raise GuestError("failed_precondition", f"process {self.pid} accepts no input")
        self.unwritten += data
        self.write_input()

    def input_fd(self) -> int | None:
        """Return the descriptor of the input, or None if it is closed."""
        return self.pty if self.pty is not None else self.stdin

    def write_input(self) -> None:
        """Write queued input as far as the process reads it."""
        fd = self.input_fd()
        if fd is None:
            return
        try:
            while self.unwritten:
                del self.unwritten[: os.write(fd, self.unwritten[:CHUNK_BYTES])]
        except BlockingIOError:
            return
        except OSError:
            self.unwritten.clear()
            self.closes_stdin = True
        if self.closes_stdin and self.stdin is not None:
            os.close(self.stdin)
            self.stdin = None

    def close_stdin(self) -> None:
        """Close the input after everything queued was written."""
        if self.pty is not None:
            raise GuestError("failed_precondition", f"process {self.pid} has a terminal: send Ctrl-D instead")
        self.closes_stdin = True
        self.write_input()

    def resize(self, cols: int, rows: int) -> None:
        """Set the size of the terminal."""
        if self.pty is None:
            raise GuestError("failed_precondition", f"process {self.pid} has no terminal")
        fcntl.ioctl(self.pty, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def kill(self, number: int) -> None:
        """Send a signal."""
        self.is_cut = self.is_cut or number in (signal.SIGKILL, signal.SIGTERM)
        if self.child.returncode is None:
            os.kill(self.pid, number)

    def check_end(self) -> bool:
        """Add the end event if the process is over. Return True if it was added."""
        if self.has_ended or self.child.poll() is None or (self.outputs and not self.is_cut):
            return False
        for fd in list(self.outputs):
            os.set_blocking(fd, False)
            while fd in self.outputs:
                before = self.last_number
                self.read_output(fd)
                if self.last_number == before and fd in self.outputs:
                    os.close(fd)
                    del self.outputs[fd]
        if self.stdin is not None:
            os.close(self.stdin)
            self.stdin = None
        self.pty = None
        self.has_ended, self.ended_at = True, time.monotonic()
        self.add({"end": self._end()})
        return True

    def _end(self) -> dict[str, Any]:
        code = self.child.returncode
        if self.is_overdue:
            return {"overdue": True}
        if code >= 0:
            status = f"exit status {code}"
            return {"exited": True, "status": status, **({"exitCode": code, "error": status} if code else {})}
        status = f"signal: {SIGNAL_TEXTS.get(-code, -code)}"
        return {"exitCode": -1, "status": status, "error": status}


def start(request: dict[str, Any], default: Account) -> GuestProcess:
    """Start a process as the user of the request. Raises GuestError."""
    config, account = request["process"], find_account(request.get("user") or "", default)
    cwd = resolve_path(config.get("cwd") or "", account.home)
    if not os.path.isdir(cwd):
        raise GuestError("invalid_argument", f"cwd '{cwd}' does not exist or is not a directory")
    env = {**account.variables(), **request.get("envs", {}), **config.get("envs", {})}
    terminal = request.get("pty")
    argv = [config["cmd"], *config.get("args", [])]
    try:
        if terminal is not None:
            return _start_in_terminal(argv, cwd, env, account, request, terminal)
        stdin = subprocess.PIPE if request.get("stdin", True) else subprocess.DEVNULL
        child = subprocess.Popen(
            argv, cwd=cwd, env=env, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
            start_new_session=True, **account.start_options(),
        )  # fmt: skip
    except (FileNotFoundError, NotADirectoryError):
        raise GuestError("not_found", f"program '{config['cmd']}' does not exist in the sandbox") from None
    except OSError as error:
        raise GuestError.of_os_error(error) from None
    process = GuestProcess(child, config, request.get("timeout_s", 0))
    for stream, name in ((child.stdout, "stdout"), (child.stderr, "stderr")):
        process.outputs[_take_fd(stream)] = name
    if child.stdin is not None:
        process.stdin = _take_fd(child.stdin)
    return process


def _take_fd(stream: Any) -> int:
    """Return a descriptor that the garbage collector does not close."""
    fd = os.dup(stream.fileno())
    stream.close()
    os.set_blocking(fd, False)
    return fd


def _start_in_terminal(
    argv: list[str], cwd: str, env: dict[str, str], account: Account, request: dict[str, Any], terminal: Any
) -> GuestProcess:
    master, slave = os.openpty()

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    try:
        if options := account.start_options():
            os.fchown(slave, account.uid, -1)
        child = subprocess.Popen(
            argv, cwd=cwd, env=env, stdin=slave, stdout=slave, stderr=slave, preexec_fn=take_terminal, **options
        )
    except BaseException:
        os.close(master)
        raise
    finally:
        os.close(slave)
    process = GuestProcess(child, request["process"], request.get("timeout_s", 0))
    os.set_blocking(master, False)
    process.pty, process.outputs[master] = master, "pty"
    size = terminal.get("size", {})
    process.resize(size.get("cols", 80), size.get("rows", 24))
    return process
