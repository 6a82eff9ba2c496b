"""Log files that processes append to themselves, and that never grow without bound."""

import os
import shutil
from pathlib import Path
from typing import BinaryIO

__all__ = ["LogFile"]


class LogFile:
    """`NAME.log` and, once it was full, `NAME.log.1`: together at most about twice `limit_bytes`.

    Processes hold it open in append mode, so it is emptied in place; a line written between copy and
    truncation is lost.
    """

    def __init__(self, path: Path, *, limit_bytes: int) -> None:
        self.path = path
        self._limit_bytes = limit_bytes

    def open(self) -> BinaryIO:
        """For appending, readable by its owner only."""
        return open(os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab")

    def rotate_if_full(self) -> None:
        """Keep the full file as `.1`, and start anew."""
        try:
            if self.path.stat().st_size < self._limit_bytes:
                return
        except FileNotFoundError:
            return
        try:
            shutil.copy(self.path, self.path.with_name(f"{self.path.name}.1"))
        finally:
            # Without room for a copy the old lines go: a full disk is no reason to let the log grow.
            os.truncate(self.path, 0)

    def tail(self, lines: int) -> str:
        """The last lines, for an error message."""
        try:
            with self.path.open("rb") as file:
                file.seek(max(0, self.path.stat().st_size - 200 * lines))
                return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return ""
