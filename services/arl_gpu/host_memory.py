"""Weights in host memory that all workers of a node have once: a file in memory for each service, or part of one.

The manager makes and holds them, a worker opens them by their paths below the manager's `/proc/PID/fd` and fills them.
They end with the manager, whatever becomes of the workers. The manager knows how much of the host they take in all:
before a worker reads a model it asks for room, and others let go of what is worth least.
"""

import asyncio
import fcntl
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from arl_core.eviction import Candidate, Use, leaving, victims

__all__ = ["Holder", "HostMemory", "limit_bytes"]

CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
UNUSED = Use()

Part = tuple[str, int]
"""A service's name, and which part of it."""


class Holder(Protocol):
    """A worker, as far as it has weights in host memory."""

    def has(self, service: str) -> bool: ...
    def has_on_device(self, service: str) -> bool: ...
    def keeps(self, service: str) -> bool:
        """It is pinned."""
        ...

    async def cool(self, service: str) -> Mapping[str, Any] | None:
        """Let go of it, unless it is in use. What is there then; None of a worker that died, and has nothing."""
        ...


class HostMemory:
    """The manager's end. `budget`: bytes that all files together may have; None for no bound."""

    def __init__(self, budget: int | None = None) -> None:
        self._budget = budget
        self._files: dict[str, tuple[str, dict[int, int]]] = {}
        """Specification, but for the rank, and descriptors by rank, by the service's name."""
        self._granted: dict[Part, int] = {}
        """Bytes that are there, or that a worker may write."""
        self._asking: Counter[Part] = Counter()
        """What workers read now."""
        self._holders: list[Holder] = []
        self._learn: Callable[[int, Mapping[str, Any]], None] | None = None
        self._making = asyncio.Lock()
        self._uses: dict[str, Use] = {}

    @property
    def granted(self) -> int:
        """Bytes, of all services."""
        return sum(self._granted.values())

    @property
    def written(self) -> int:
        """Bytes that are there."""
        return sum(os.fstat(each).st_size for _, files in self._files.values() for each in files.values())

    def join(self, holder: Holder) -> None:
        """In the order of their devices."""
        self._holders.append(holder)

    def tell(self, learn: Callable[[int, Mapping[str, Any]], None]) -> None:
        """From now on, what is on a device after something of it had to leave."""
        self._learn = learn

    def note_use(self, service: str) -> None:
        self._uses[service] = self._uses.get(service, UNUSED).again(time.monotonic())

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

    @asynccontextmanager
    async def room(self, service: str, rank: int, size: int, waiting: Sequence[str] = ()) -> AsyncIterator[bool]:
        """Whether there is room for a part that is read meanwhile. `waiting`: services that are needed next."""
        part = service, rank
        self._asking[part] += 1
        try:
            async with self._making:
                is_there = await self._make(part, size, waiting)
            yield is_there
        finally:
            self._asking[part] -= 1
            self.empty()

    def empty(self) -> None:
        """What no worker has mapped, and none is about to, takes nothing any more."""
        for part in [part for part in self._granted if not self._asking[part]]:
            descriptor = self._files[part[0]][1].get(part[1]) if part[0] in self._files else None
            if descriptor is None or _emptied(descriptor):
                del self._granted[part]

    def forget(self, name: str) -> None:
        if (held := self._files.pop(name, None)) is not None:
            for descriptor in held[1].values():
                os.close(descriptor)
        self._uses.pop(name, None)

    def close(self) -> None:
        for name in [*self._files]:
            self.forget(name)

    async def _make(self, part: Part, size: int, waiting: Sequence[str]) -> bool:
        if self._granted.get(part) == size:
            return True  # another worker has it, or reads it now
        self.empty()
        stay = {name for name, _ in +self._asking}
        while (missing := self._missing(part, size)) > 0:
            leave = victims(self._leaving(stay, waiting), missing=missing)
            if leave is None:
                return False
            for service in leave:
                await self._cool(service)
            self.empty()
            stay.update(leave)
        self._granted[part] = size
        return True

    def _missing(self, part: Part, size: int) -> int:
        if self._budget is None:
            return 0
        return self.granted - self._granted.get(part, 0) + size - self._budget

    def _leaving(self, stay: Collection[str], waiting: Sequence[str]) -> list[Candidate]:
        """Whoever leaves first at the head: what is on no device, and of that what is used least."""
        sizes: Counter[str] = Counter()
        for (name, _), size in self._granted.items():
            sizes[name] += size
        may = [n for n in sizes if n not in stay and not any(each.keeps(n) for each in self._holders)]
        on_device = {name for name in may if any(each.has_on_device(name) for each in self._holders)}
        off = [self._candidate(name, sizes[name]) for name in may if name not in on_device]
        on = [self._candidate(name, sizes[name]) for name in sorted(on_device)]
        return [*leaving(off, waiting=waiting), *leaving(on, waiting=waiting)]

    def _candidate(self, name: str, size: int) -> Candidate:
        """Reading it again costs by the byte."""
        use = self._uses.get(name, UNUSED)
        rate, used_at = use.rate(time.monotonic()), int(use.at * 1e6)
        return Candidate(name=name, size=size, restore_s=float(size), rate=rate, used_at=used_at, restored_at=0)

    async def _cool(self, service: str) -> None:
        for number, holder in enumerate(self._holders):
            answer = await holder.cool(service) if holder.has(service) else None
            if answer is not None and self._learn is not None:
                self._learn(number, answer)


def _emptied(descriptor: int) -> bool:
    """Whether nobody has mapped the file, nor writes it; see `arl_gpu.kept`."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except BlockingIOError:
        return False
    finally:
        fcntl.lockf(descriptor, fcntl.LOCK_UN)
    return True


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
