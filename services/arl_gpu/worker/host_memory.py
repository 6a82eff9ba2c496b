"""Weights in host memory, shared by all workers of a node: one memory file for each service, or for each part of one.

The manager creates and owns the files. A worker opens them by their paths below the manager's `/proc/PID/fd` and fills
them. They end with the manager and outlive the workers. The manager counts the host memory of all files. Before a
worker fills a file it requests room, and the least valuable services are unloaded.
"""

import asyncio
import fcntl
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from arl_core.residency.eviction import DecayedUseCount, EvictionCandidate, eviction_order, select_victims

__all__ = ["HostAllocationRequest", "HostMemory", "HostWeightHolder", "memory_limit_bytes"]

CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
NEVER_USED = DecayedUseCount()

HostAllocationRequest = tuple[Mapping[str, Any], int]
"""The specification of a service, or of a part of one, and its size in bytes."""


class HostWeightHolder(Protocol):
    """The interface of a worker that maps weights in host memory."""

    def has(self, service: str) -> bool:
        """Return True if the worker has the service in host memory."""

    def has_on_device(self, service: str) -> bool:
        """Return True if the service is on the worker's device or being copied there."""

    def is_pinned(self, service: str) -> bool:
        """Return True if the service is pinned."""
        ...

    async def unload(self, service: str) -> Mapping[str, Any]:
        """Unload the service, unless it is in use. Return the device's state; it is empty if the worker died."""
        ...


@dataclass(slots=True, eq=False)
class _WeightFile:
    service: str
    spec_json: str
    """JSON of the service's specification."""
    descriptor: int
    reserved_bytes: int = 0
    """Bytes that are written, or that a worker is writing now."""
    is_being_read: bool = False
    """True while a worker reads the service's files into it."""

    @property
    def path(self) -> str:
        """Return the path by which workers open the file."""
        return f"/proc/{os.getpid()}/fd/{self.descriptor}"


class HostMemory:
    """The manager's budget of host memory. `budget`: maximum bytes of all files; None for no limit."""

    def __init__(self, budget: int | None = None) -> None:
        self._budget = budget
        self._files: dict[tuple[str, int], _WeightFile] = {}
        """Files by service name and rank."""
        self._orphaned: list[_WeightFile] = []
        """Files of removed or changed services, which a worker may still map."""
        self._holders: list[HostWeightHolder] = []
        self._on_response: Callable[[int, Mapping[str, Any]], None] | None = None
        self._changed = asyncio.Condition()
        self._uses: dict[str, DecayedUseCount] = {}

    @property
    def reserved_bytes(self) -> int:
        """Reserved bytes of all services."""
        return sum(file.reserved_bytes for file in self._all_files)

    @property
    def written_bytes(self) -> int:
        """Written bytes of all services."""
        return sum(os.fstat(file.descriptor).st_size for file in self._all_files)

    @property
    def _all_files(self) -> Sequence[_WeightFile]:
        return [*self._files.values(), *self._orphaned]

    def add_holder(self, holder: HostWeightHolder) -> None:
        """Add a worker. Call it in the order of the devices."""
        self._holders.append(holder)

    def set_response_handler(self, on_response: Callable[[int, Mapping[str, Any]], None]) -> None:
        """Set the callback for a device's state after a service was unloaded from it."""
        self._on_response = on_response

    def record_use(self, service: str) -> None:
        """Count a use of the service for the order of evictions."""
        self._uses[service] = self._uses.get(service, NEVER_USED).incremented(time.monotonic())

    @asynccontextmanager
    async def reserve(
        self, *requests: HostAllocationRequest, waiting: Sequence[str] = ()
    ) -> AsyncIterator[Sequence[str] | None]:
        """Reserve files for services that the caller reads now. Yields their paths, or None if there is no room for
        all.

        Waits for other reads, including reads of the same services. `waiting`: services that are needed next.
        """
        files: list[_WeightFile] = []
        async with self._changed:
            if await self._make_room(requests, waiting):
                files = [self._get_file(spec) for spec, _ in requests]
                for file, (_, size) in zip(files, requests, strict=True):
                    file.reserved_bytes, file.is_being_read = size, True
        try:
            yield [file.path for file in files] if files else None
        finally:
            for file in files:
                file.is_being_read = False
            await asyncio.shield(self.release_unmapped())

    async def release_unmapped(self) -> None:
        """Free the memory of files that no worker maps or is about to map."""
        async with self._changed:
            await self._release_unmapped()
            self._changed.notify_all()

    def forget(self, name: str) -> None:
        """Forget a service. Its memory counts until the workers unmap it."""
        for key in [key for key in self._files if key[0] == name]:
            self._orphan(key)
        self._uses.pop(name, None)

    def close(self) -> None:
        """Close all files. Workers keep their mappings."""
        for file in self._all_files:
            os.close(file.descriptor)
        self._files, self._orphaned = {}, []

    def _get_file(self, spec: Mapping[str, Any]) -> _WeightFile:
        """Return the file of a specification. A change gets a new file, because workers may map the old one."""
        options = dict(spec.get("options", {}))
        key = spec["name"], options.pop("rank", 0)
        said = json.dumps({**spec, "options": options}, sort_keys=True)
        if key in self._files and self._files[key].spec_json != said:
            self._orphan(key)
        if key not in self._files:
            self._files[key] = _WeightFile(key[0], said, os.memfd_create(f"weights-{key[0]}", os.MFD_CLOEXEC))
        return self._files[key]

    def _orphan(self, key: tuple[str, int]) -> None:
        self._orphaned.append(self._files.pop(key))

    async def _release_unmapped(self) -> None:
        """Free unmapped files in a thread: the kernel takes 8 s to free 64 GiB."""
        for file in self._all_files:
            if file.is_being_read:
                continue
            if file.reserved_bytes and await asyncio.to_thread(_truncate_if_unmapped, file.descriptor):
                file.reserved_bytes = 0
            if not file.reserved_bytes and file in self._orphaned:
                self._orphaned.remove(file)
                os.close(file.descriptor)

    async def _make_room(self, requests: Sequence[HostAllocationRequest], waiting: Sequence[str]) -> bool:
        """Make room for all requests, or return False. It reserves nothing while it waits, which prevents deadlocks."""
        stayed: set[str] = set()
        while True:
            files = [self._get_file(spec) for spec, _ in requests]
            if any(file.is_being_read for file in files):
                await self._changed.wait()
                continue
            await self._release_unmapped()
            missing = self._missing_bytes(files, sum(size for _, size in requests))
            if missing <= 0:
                return True
            leave = select_victims(
                self._eviction_order(stayed | {file.service for file in files}, waiting), missing_bytes=missing
            )
            if leave is not None:
                await self._unload(leave)
                stayed.update(leave)
            elif any(file.is_being_read for file in self._all_files):
                await self._changed.wait()
                stayed.clear()
            else:
                return False

    def _missing_bytes(self, files: Collection[_WeightFile], size: int) -> int:
        if self._budget is None:
            return 0
        return sum(file.reserved_bytes for file in self._all_files if file not in files) + size - self._budget

    def _eviction_order(self, excluded: Collection[str], waiting: Sequence[str]) -> list[EvictionCandidate]:
        """Return the services in eviction order: services on no device first, then the least used."""
        sizes: Counter[str] = Counter()
        for file in self._files.values():
            sizes[file.service] += file.reserved_bytes
        read = {file.service for file in self._all_files if file.is_being_read}
        may = [
            name
            for name, size in sizes.items()
            if size and not (name in excluded or name in read or any(each.is_pinned(name) for each in self._holders))
        ]
        on_device = {name for name in may if any(each.has_on_device(name) for each in self._holders)}
        off = [self._candidate(name, sizes[name]) for name in may if name not in on_device]
        on = [self._candidate(name, sizes[name]) for name in sorted(on_device)]
        return [*eviction_order(off, queued=waiting), *eviction_order(on, queued=waiting)]

    def _candidate(self, name: str, size: int) -> EvictionCandidate:
        """Return a service as an eviction candidate. Its restore cost is proportional to its bytes."""
        use = self._uses.get(name, NEVER_USED)
        rate, used_at = use.rate(time.monotonic()), int(use.updated_at * 1e6)
        return EvictionCandidate(name=name, size=size, restore_s=float(size), rate=rate, used_at=used_at, restored_at=0)

    async def _unload(self, services: Collection[str]) -> None:
        for number, holder in enumerate(self._holders):
            for service in services:
                if holder.has(service):
                    answer = await holder.unload(service)
                    if self._on_response is not None:
                        self._on_response(number, answer)


def _truncate_if_unmapped(descriptor: int) -> bool:
    """Empty the file and return True, unless a process maps or writes it. See `arl_gpu.models.weight_buffer`."""
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


def memory_limit_bytes(cgroups: Path = CGROUPS, own: Path = OWN_CGROUPS) -> int:
    """Return the memory limit in bytes: that of the control group, of an ancestor of it, or of the machine."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _limit_files(cgroups, own):
        with suppress(OSError):
            text = path.read_text().strip()
            total = min(total, int(text) if text.isdigit() else total)
    return total


def _limit_files(cgroups: Path, own: Path) -> Iterator[Path]:
    """Yield the files of memory limits. A container may not see some of them."""
    yield from (cgroups / "memory.max", cgroups / "memory" / "memory.limit_in_bytes")
    with suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if ".." in Path(path).parts or not (controllers == "" or "memory" in controllers.split(",")):
                continue
            base, name = (cgroups, "memory.max") if not controllers else (cgroups / "memory", "memory.limit_in_bytes")
            group = Path(path.lstrip("/"))
            yield from (base / each / name for each in (group, *group.parents))
