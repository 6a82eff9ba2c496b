"""The results of ended attempts on the node's disk, while Postgres does not accept them."""

import logging
import os
import re
import threading
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from arl_core.domain.model import Fence

__all__ = ["ResultSpool", "SpooledResult"]

FORMAT = b"tangram-result-1"
UNFINISHED_SUFFIX = ".unfinished"
_FILE_NAME = re.compile(r"(\d{12})\.([0-9a-f-]{36})\.(\d+)\.result")
"""Number of the result, id of the action and number of the grant."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpooledResult:
    """An encoded result. `epoch` is the epoch of the node under which its attempt was granted."""

    fence: Fence
    epoch: UUID
    body: bytes


class ResultSpool:
    """A directory with one file for each result, at most `max_bytes` in all. Every method may run in any thread.

    A file is complete or absent: it is written under another name, synchronized and renamed, and has a checksum.
    """

    def __init__(self, directory: Path, *, max_bytes: int) -> None:
        self.directory = directory
        self._max_bytes = max_bytes
        self.used_bytes = 0
        """Size of all files in bytes."""
        self._paths: dict[Fence, Path] = {}
        """File of each result, in the order in which they were written."""
        self._sizes: dict[Fence, int] = {}
        self._next_number = 1
        self._lock = threading.Lock()

    def __contains__(self, fence: Fence) -> bool:
        return fence in self._paths

    def __len__(self) -> int:
        return len(self._paths)

    def scan(self) -> Sequence[Fence]:
        """Find the results of earlier processes and return their fences, oldest first. Incomplete files are removed.

        Raises OSError.
        """
        with self._lock:
            self._paths, self._sizes, self.used_bytes = {}, {}, 0
            for path in sorted(self.directory.iterdir()) if self.directory.is_dir() else ():
                if path.name.endswith(UNFINISHED_SUFFIX):
                    path.unlink(missing_ok=True)
                elif (named := _FILE_NAME.fullmatch(path.name)) is not None:
                    self._add(Fence(UUID(named[2]), int(named[3])), path, path.stat().st_size)
                    self._next_number = max(self._next_number, int(named[1]) + 1)
            return tuple(self._paths)

    def write(self, results: Sequence[SpooledResult]) -> str | None:
        """Write the results that fit. Return the reason if some could not be written, else None."""
        with self._lock:
            try:
                self._make_directory()
                refused = [result for result in results if result.fence not in self and not self._write_file(result)]
                _sync_directory(self.directory)
            except OSError as error:
                return f"the directory {self.directory} cannot be written: {error.strerror}"
        if refused:
            return f"the {self._max_bytes >> 20} MiB of {self.directory} do not suffice (TANGRAM_SPOOL_MIB)"
        return None

    def read(self, fence: Fence) -> SpooledResult | None:
        """Return a result, or None if its file is damaged. Raises OSError."""
        with self._lock:
            path = self._paths[fence]
        return _decode(fence, path.read_bytes())

    def remove(self, fences: Iterable[Fence]) -> None:
        """Remove results that are no longer needed. An empty directory is removed too. Raises OSError."""
        with self._lock:
            for fence in fences:
                if (path := self._paths.pop(fence, None)) is not None:
                    self.used_bytes -= self._sizes.pop(fence)
                    path.unlink(missing_ok=True)
            if not self._paths and self.directory.is_dir() and not any(self.directory.iterdir()):
                self.directory.rmdir()

    def _make_directory(self) -> None:
        if not self.directory.is_dir():
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _sync_directory(self.directory.parent)

    def _write_file(self, result: SpooledResult) -> bool:
        """Write one result. Return False if it does not fit. Raises OSError."""
        data, fence = _encode(result), result.fence
        if self.used_bytes + len(data) > self._max_bytes:
            return False
        path = self.directory / f"{self._next_number:012d}.{fence.action_id}.{fence.grant_no}.result"
        unfinished = path.with_name(path.name + UNFINISHED_SUFFIX)
        try:
            with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(path)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise
        self._next_number += 1
        self._add(fence, path, len(data))
        return True

    def _add(self, fence: Fence, path: Path, size: int) -> None:
        self._paths[fence], self._sizes[fence] = path, size
        self.used_bytes += size


def _encode(result: SpooledResult) -> bytes:
    """Return the content of a file: a line with the format, the epoch and the checksum of the body, then the body."""
    return b"%s %s %08x\n%s" % (FORMAT, str(result.epoch).encode(), zlib.crc32(result.body), result.body)


def _decode(fence: Fence, data: bytes) -> SpooledResult | None:
    header, _, body = data.partition(b"\n")
    try:
        name, epoch, checksum = header.split(b" ")
        if name == FORMAT and int(checksum, 16) == zlib.crc32(body):
            return SpooledResult(fence=fence, epoch=UUID(epoch.decode()), body=body)
    except ValueError:
        pass
    log.error("the spooled result of action %s, grant %d, is damaged", fence.action_id, fence.grant_no)
    return None


def _sync_directory(directory: Path) -> None:
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
