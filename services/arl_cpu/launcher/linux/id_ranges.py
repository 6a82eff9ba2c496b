"""Ranges of host ids, one for each living environment. No two launchers that share `/run` use the same range.

The ranges are grouped into blocks. A launcher takes a block by a lock on a file of `/run`, which the kernel releases
when the launcher ends. It begins at a random block, so launchers of different containers rarely choose the same one.
"""

import fcntl
import heapq
import os
import secrets
from contextlib import suppress
from functools import cache
from pathlib import Path

from arl_cpu.launcher.linux.syscalls import unshare

__all__ = ["IDS_PER_ENVIRONMENT", "IdRanges", "can_map_ranges", "give_file", "open_id_ranges"]

IDS_PER_ENVIRONMENT = 0x10000
"""Ids of one environment. Distributions and images use uids and gids below this number."""
_FIRST_ID = 0x80000000
"""No distribution or container engine assigns ids from here on."""
_BLOCKS, _RANGES_PER_BLOCK = 511, 64
_NEW_USER = 0x10000000
_LOCKS = Path("/run/tangram-ids")


class IdRanges:
    """The free and used ranges of one launcher."""

    def __init__(self, locks: Path, first_block: int) -> None:
        self._locks, self._next_block = locks, first_block % _BLOCKS
        self._untried = _BLOCKS
        self._free: list[int] = []
        self._files: list[int] = []

    def take(self) -> int:
        """Return the first id of a range that no living environment uses. Raises OSError if all are in use."""
        if not self._free:
            self._take_block()
        return heapq.heappop(self._free)

    def release(self, first_id: int) -> None:
        """Return a range whose environment has ended."""
        heapq.heappush(self._free, first_id)

    def close(self) -> None:
        """Release all blocks. No environment of this launcher may be alive."""
        for file in self._files:
            os.close(file)
        self._files.clear()
        self._free.clear()

    def _take_block(self) -> None:
        while self._untried:
            block = self._next_block
            self._next_block, self._untried = (block + 1) % _BLOCKS, self._untried - 1
            if self._lock(block):
                first = _FIRST_ID + block * _RANGES_PER_BLOCK * IDS_PER_ENVIRONMENT
                self._free = [first + number * IDS_PER_ENVIRONMENT for number in range(_RANGES_PER_BLOCK)]
                return
        self._untried = _BLOCKS  # a later environment may find a block of a launcher that has ended
        raise OSError("every range of ids is used by an environment of this machine")

    def _lock(self, block: int) -> bool:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(self._locks / str(block), flags, 0o600)
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._files.append(file)
            return True
        os.close(file)
        return False


def open_id_ranges() -> IdRanges | None:
    """Return the ranges, or None if this machine or this process cannot map them."""
    return IdRanges(_LOCKS, secrets.randbelow(_BLOCKS)) if can_map_ranges() else None


@cache
def can_map_ranges(locks: Path = _LOCKS) -> bool:
    """Return True for root with enough ids, by a test. Root of most containers of other engines has too few."""
    if os.geteuid() != 0 or not all(_has_ids(Path(f"/proc/self/{name}")) for name in ("uid_map", "gid_map")):
        return False
    try:
        locks.mkdir(mode=0o700, exist_ok=True)
        if locks.lstat().st_uid != 0 or not os.access(locks, os.W_OK):
            return False
        _try_mapping()
    except OSError:
        return False
    return True


def give_file(file: int, owner: int) -> None:
    """Change the owner of a pipe or terminal, and as root its group, to ids of an environment."""
    os.fchown(file, owner, owner if os.geteuid() == 0 else -1)


def _try_mapping() -> None:
    """Map a range in a new user namespace. Raises OSError if this host does not allow it."""
    ready, go_on = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(go_on[1])
            unshare(_NEW_USER)
            os.write(ready[1], b"x")
            os.read(go_on[0], 1)
        finally:
            os._exit(0)
    try:
        os.close(ready[1])
        os.read(ready[0], 1)  # ends without data if there is no namespace, and the maps are then not writable
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{pid}/{name}").write_text(f"0 {_FIRST_ID} {IDS_PER_ENVIRONMENT}")
    finally:
        for file in (ready[0], *go_on):
            os.close(file)
        os.waitpid(pid, 0)


def _has_ids(id_map: Path) -> bool:
    """Return True if this user namespace has all ids of the ranges."""
    last = _FIRST_ID + _BLOCKS * _RANGES_PER_BLOCK * IDS_PER_ENVIRONMENT
    extents = [tuple(map(int, line.split())) for line in id_map.read_text().splitlines()]
    return any(first <= _FIRST_ID and last <= first + count for first, _, count in extents)
