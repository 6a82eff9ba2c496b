"""Commands on a terminal of 80 columns, as a user sees them."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["TerminalRun", "run_in_terminal"]

ROWS = 24
COLUMNS = 80
CONTROL_SEQUENCE = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07)")


@dataclass(frozen=True)
class TerminalRun:
    """The exit code of a command and everything that it wrote to its terminal."""

    returncode: int
    written: str

    @property
    def lines(self) -> list[str]:
        """The written lines without control sequences, those included that were redrawn later."""
        return CONTROL_SEQUENCE.sub("", self.written).replace("\r", "\n").split("\n")


def run_in_terminal(command: Sequence[str], *, env: Mapping[str, str], cwd: Path, timeout_s: float) -> TerminalRun:
    """Run a command whose standard streams are a terminal. Raises TimeoutError if it does not end in time."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    started = subprocess.Popen(
        command,
        env={**env, "TERM": "xterm-256color"},
        cwd=cwd,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        written = _read_all(ours, ends_at=time.monotonic() + timeout_s)
        return TerminalRun(started.wait(timeout_s), written)
    finally:
        os.close(ours)
        if started.poll() is None:
            started.kill()
            started.wait()


def _read_all(terminal: int, *, ends_at: float) -> str:
    """Read until the last process that has the terminal open closes it."""
    chunks = []
    while select.select([terminal], [], [], max(0.0, ends_at - time.monotonic()))[0]:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # Linux reports the end of a terminal as an input error
            chunk = b""
        if not chunk:
            return b"".join(chunks).decode()
        chunks.append(chunk)
    raise TimeoutError(f"no end of the command; it wrote: {b''.join(chunks)[-2000:].decode(errors='replace')}")
