"""Log files of limited size to which processes append directly."""

import os
import shutil
from pathlib import Path
from typing import BinaryIO

__all__ = ["LogFile"]


class LogFile:
    """The files `NAME.log` and, after the first rotation, `NAME.log.1`: together at most about twice `limit_bytes`.

    Processes have the file open in append mode, so rotation truncates it in place. A line written between copy and
    truncation is lost.
    """

    def __init__(self, path: Path, *, limit_bytes: int) -> None:
        self.path = path
        self._limit_bytes = limit_bytes

    def open(self) -> BinaryIO:
        """Open the file for appending, readable by its owner only."""
        return open(os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab")

    def rotate_if_full(self) -> None:
        """Copy a full file to `.1` and truncate it."""
        try:
            if self.path.stat().st_size < self._limit_bytes:
                return
        except FileNotFoundError:
            return
        try:
            shutil.copy(self.path, self.path.with_name(f"{self.path.name}.1"))
        finally:
            # If the disk has no space for a copy, drop the old lines: the log must not grow on a full disk.
            os.truncate(self.path, 0)

    def tail(self, lines: int) -> str:
        """Return the last lines, for an error message."""
        try:
            with self.path.open("rb") as file:
                file.seek(max(0, self.path.stat().st_size - 200 * lines))
                return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return ""
