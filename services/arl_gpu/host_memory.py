"""Weights in host memory that all workers of a node have once: a file in memory for each service, or part of one.

The manager makes and holds them, a worker opens them by their paths below the manager's `/proc/PID/fd`. They end with
the manager, whatever becomes of the workers.
"""

import fcntl
import json
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["HostMemory", "limit_bytes", "shared"]

CHUNK = 8 << 20
CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


class HostMemory:
    """The manager's end: one file for each specification, empty until a worker has read the weights."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[str, dict[int, int]]] = {}
        """Specification, but for the rank, and descriptors by rank, by the service's name."""

    def path_of(self, spec: Mapping[str, Any]) -> str:
        """Another specification of the same name is another file; who has the old one mapped keeps it.

        So is each rank's part of a service that several devices compute together.
        """
        options = dict(spec.get("options", {}))
        name, rank = spec["name"], options.pop("rank", 0)
        said = json.dumps({**spec, "options": options}, sort_keys=True)
        if (held := self._files.get(name)) is None or held[0] != said:
            self.forget(name)
            held = self._files[name] = said, {}
        if rank not in held[1]:
            held[1][rank] = os.memfd_create(f"weights-{name}", os.MFD_CLOEXEC)
        return f"/proc/{os.getpid()}/fd/{held[1][rank]}"

    def forget(self, name: str) -> None:
        if (held := self._files.pop(name, None)) is not None:
            for descriptor in held[1].values():
                os.close(descriptor)

    def close(self) -> None:
        for name in [*self._files]:
            self.forget(name)


def shared(path: str, content: memoryview) -> memoryview:
    """The same bytes, where the others have them too; `content` itself where theirs are different ones.

    Exactly its size. Whoever comes first writes; a file that is shorter belongs to one that died of it.
    """
    with open(path, "r+b", buffering=0) as file:
        # A lock of this process, which the system takes back if it dies.
        fcntl.lockf(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_size < len(content):
            for start in range(0, len(content), CHUNK):
                _write(file.fileno(), content[start : start + CHUNK], start)
        if os.fstat(file.fileno()).st_size != len(content):
            return content
        # Writable, for a device that registers pages asks for that; nobody writes.
        mapped = memoryview(mmap.mmap(file.fileno(), len(content)))
    return mapped if _alike(mapped, content) else content


def limit_bytes() -> int:
    """Of this process's memory: the control group's, or the machine's."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in CGROUP_LIMITS:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return total


def _write(descriptor: int, piece: memoryview, at: int) -> None:
    while piece:
        written = os.pwrite(descriptor, piece, at)
        piece, at = piece[written:], at + written


def _alike(one: memoryview, other: memoryview) -> bool:
    starts = range(0, len(one), CHUNK)
    return all(bytes(one[start : start + CHUNK]) == bytes(other[start : start + CHUNK]) for start in starts)
