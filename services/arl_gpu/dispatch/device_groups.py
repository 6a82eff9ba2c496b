"""Groups of devices that compute a service together, and one order for all their workers.

If a service is sharded into k parts, devices 0 to k-1 are the first group, the next k the second, and so on. Remaining
devices have no part of it. The first device of a group leads: only its loop takes batches of the service.
"""

import asyncio
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Protocol

from arl_gpu.models.interface import Item
from arl_gpu.parallel.rendezvous import RankInfo
from arl_gpu.worker.client import WorkerDied, as_no_room
from arl_gpu.worker.host_memory import HostMemory
from arl_gpu.worker.messages import HOST_FULL

__all__ = ["PEER_FAILURE_GRACE_S", "BatchResult", "DeviceGroups", "GroupMember", "device_groups"]

PEER_FAILURE_GRACE_S = 5.0
"""Seconds for the other ranks to detect a lost rank, if their sums do not use sockets, which detect it at once."""
PEER_NOT_READY = "peer_not_ready"
PEER_FAULT_CODES = ("peer_gone", PEER_NOT_READY)
"""Error codes of a worker whose failure was caused by another rank."""
SUMMED_FIELDS = ("forward_cpu_s", "model_cpu_s")
NO_SPLITS: Mapping[str, int] = {}


class GroupMember(Protocol):
    """The interface of a worker that computes part of a batch."""

    @property
    def limit_s(self) -> float:
        """Return the maximum seconds of an order."""

    @property
    def order_lock(self) -> asyncio.Lock:
        """Return the lock of the worker's orders."""

    async def ensure_process(self) -> int:
        """Return the process id for the next order; start the worker if needed. Raises `WorkerDied`."""

    async def score_rank(
        self,
        service: str,
        items: Sequence[Item],
        waiting: Sequence[str],
        rank_info: RankInfo,
        *,
        room: tuple[str, int] | None = None,
    ) -> dict[str, Any]:
        """Score items as one rank of a group. Raises `WorkerDied`."""

    @property
    def host(self) -> HostMemory | None:
        """Return the host memory that the worker shares; None if it has its own."""

    def spec(self, service: str) -> Mapping[str, Any]:
        """Return the specification of a service for this worker."""

    async def score(self, service: str, items: Sequence[Item], waiting: Sequence[str] = ()) -> dict[str, Any]:
        """Score items and return the worker's response, without `HOST_FULL`. The worker may prefetch `waiting`.

        Raises `WorkerDied`; the next call may find another worker.
        """
        ...


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The result of a batch or its `error`, the responses by device, and the causes of worker deaths by device."""

    response: Mapping[str, Any]
    responses: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    deaths: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Rendezvous:
    """The file by which the workers of a group connect once. A new worker needs a new rendezvous."""

    pids: Sequence[int]
    number: int
    descriptor: int

    @property
    def path(self) -> str:
        """Path of the memory file. It belongs to this process, so it cannot outlive it."""
        return f"/proc/{os.getpid()}/fd/{self.descriptor}"


def device_groups(devices: int, size: int) -> Iterator[Sequence[int]]:
    """Return the device numbers of each group. Without sharding, a group is one device."""
    return (range(first, first + size) for first in range(0, devices - size + 1, size))


class DeviceGroups:
    """The groups of devices. `splits` returns the number of parts of each sharded service, by name."""

    def __init__(
        self,
        workers: Sequence[GroupMember],
        splits: Callable[[], Mapping[str, int]] = lambda: NO_SPLITS,
        *,
        grace_s: float = PEER_FAILURE_GRACE_S,
    ) -> None:
        self._workers, self._splits, self._grace_s = workers, splits, grace_s
        self._rendezvous: dict[Sequence[int], _Rendezvous] = {}
        self._rendezvous_numbers = count(1)

    def members(self, service: str, number: int) -> Sequence[int]:
        """Return the group of this device for a service; empty if the device belongs to no group."""
        size = self._splits().get(service, 1)
        first = number - number % size
        return range(first, first + size) if first + size <= len(self._workers) else ()

    @property
    def splits(self) -> Mapping[str, int]:
        """Number of parts of each sharded service, by name."""
        return self._splits()

    def services_not_led_by(self, number: int) -> set[str]:
        """Return services whose batches this device does not take."""
        return {name for name in self._splits() if number not in self.members(name, number)[:1]}

    async def score(
        self, service: str, leader: int, items: Sequence[Item], waiting: Callable[[int], Sequence[str]]
    ) -> BatchResult:
        """Score items on a group. `waiting` returns the services that a device needs next.

        If a worker died, the next call may find another.
        """
        numbers = self.members(service, leader)
        found = (
            await self._score_with_room(service, numbers, items, waiting)
            if len(numbers) > 1
            else await self._score_on_device(service, leader, items, waiting)
        )
        if found.deaths and (host := self._workers[leader].host) is not None:
            await host.release_unmapped()
        return found

    async def _score_on_device(
        self, service: str, leader: int, items: Sequence[Item], waiting: Callable[[int], Sequence[str]]
    ) -> BatchResult:
        try:
            answer = await self._workers[leader].score(service, items, waiting(leader))
        except WorkerDied as error:
            return _death_result({leader: str(error)}, {})
        return BatchResult(answer, {leader: answer})

    def close(self) -> None:
        """Close all rendezvous. No batch may be running."""
        while self._rendezvous:
            os.close(self._rendezvous.popitem()[1].descriptor)

    async def _score_with_room(
        self, service: str, numbers: Sequence[int], items: Sequence[Item], waiting: Callable[[int], Sequence[str]]
    ) -> BatchResult:
        """Score items; reserve host memory when a rank needs it.

        A rank whose files were replaced reads them again, and may request memory after the other ranks did.
        """
        sizes: dict[int, int] = {}
        found = await self._score_on_group(service, numbers, items, waiting, {})
        while full := _host_memory_requests(found, sizes):
            sizes |= full
            wanted = [(self._workers[number].spec(service), size) for number, size in sizes.items()]
            host = self._workers[numbers[0]].host
            assert host is not None
            # Reserve all at once: otherwise two groups could each wait for memory that the other has reserved.
            async with host.reserve(*wanted, waiting=waiting(numbers[0])) as paths:
                if paths is None:
                    break
                room = dict(zip(sizes, zip(paths, sizes.values(), strict=True), strict=True))
                found = await self._score_on_group(service, numbers, items, waiting, room)
        return replace(found, response=as_no_room({**found.response}))

    async def _score_on_group(
        self,
        service: str,
        numbers: Sequence[int],
        items: Sequence[Item],
        waiting: Callable[[int], Sequence[str]],
        room: Mapping[int, tuple[str, int]],
    ) -> BatchResult:
        """Send the batch to all ranks. `room`: path and size of the file for each rank that reads its part first."""
        async with AsyncExitStack() as turns:
            # Always lock in this order, so that overlapping groups cannot deadlock.
            for number in numbers:
                await turns.enter_async_context(self._workers[number].order_lock)
            pids: list[int] = []
            for number in numbers:
                try:
                    pids.append(await self._workers[number].ensure_process())
                except WorkerDied as error:
                    return _death_result({number: str(error)}, {})
            meeting = self._get_rendezvous(numbers, pids)
            workers = [self._workers[number] for number in numbers]
            parts = [
                worker.score_rank(
                    service,
                    items,
                    waiting(number),
                    RankInfo(meeting.path, meeting.number, rank, len(numbers), worker.limit_s),
                    room=room.get(number),
                )
                for rank, (number, worker) in enumerate(zip(numbers, workers, strict=True))
            ]
            found = _combine_results(numbers, await self._await_ranks(parts))
            if not _is_rendezvous_valid(found):
                self._close_rendezvous(numbers)
            return found

    def _get_rendezvous(self, numbers: Sequence[int], pids: Sequence[int]) -> _Rendezvous:
        """Return the rendezvous of these processes, or create a new one."""
        if (held := self._rendezvous.get(numbers)) is not None and held.pids == pids:
            return held
        self._close_rendezvous(numbers)
        descriptor = os.memfd_create("meeting", os.MFD_CLOEXEC)
        self._rendezvous[numbers] = meeting = _Rendezvous(pids, next(self._rendezvous_numbers), descriptor)
        return meeting

    def _close_rendezvous(self, numbers: Sequence[int]) -> None:
        if (held := self._rendezvous.pop(numbers, None)) is not None:
            os.close(held.descriptor)

    async def _await_ranks(self, rank_calls: Sequence[Any]) -> "list[asyncio.Task[dict[str, Any]]]":
        """Wait for all ranks. Ranks that do not detect a failure in time are cancelled, which ends their workers."""
        tasks = [asyncio.create_task(part, name="part of a batch") for part in rank_calls]
        pending: Collection[asyncio.Task[dict[str, Any]]] = tasks
        try:
            while pending:
                limit = self._grace_s if any(map(_has_failed, tasks)) else None
                done, pending = await asyncio.wait(pending, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        return tasks


def _has_failed(task: "asyncio.Task[dict[str, Any]]") -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None or "error" in task.result())


def _combine_results(numbers: Sequence[int], tasks: "Sequence[asyncio.Task[dict[str, Any]]]") -> BatchResult:
    heard: dict[int, dict[str, Any]] = {}
    died: dict[int, str] = {}
    for number, task in zip(numbers, tasks, strict=True):
        if task.cancelled():
            died[number] = "the worker did not detect the failure of another worker of its group"
        elif isinstance(error := task.exception(), WorkerDied):
            died[number] = str(error)
        else:
            heard[number] = task.result()
    if died:
        return _death_result(died, heard)
    failed = [each for each in heard.values() if "error" in each]
    if failed:
        return BatchResult(next((each for each in failed if each["error"] not in PEER_FAULT_CODES), failed[0]), heard)
    return BatchResult(_sum_responses([*heard.values()]), heard)


def _is_rendezvous_valid(found: BatchResult) -> bool:
    """Return True if the ranks can connect again, also if they agreed that not all could begin."""
    errors = {heard["error"] for heard in found.responses.values() if "error" in heard}
    return not found.deaths and errors <= {HOST_FULL, PEER_NOT_READY}


def _host_memory_requests(found: BatchResult, sizes: Mapping[int, int]) -> dict[int, int]:
    """Return the bytes that each device must reserve before its worker reads its part, unless it got that room."""
    full = {number: heard["host_bytes"] for number, heard in found.responses.items() if heard.get("error") == HOST_FULL}
    return {number: size for number, size in full.items() if sizes.get(number) != size}


def _death_result(deaths: Mapping[int, str], responses: Mapping[int, Mapping[str, Any]]) -> BatchResult:
    return BatchResult({"error": "worker_died", "message": "; ".join(deaths.values())}, responses, deaths)


def _sum_responses(responses: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the first rank's entries, which equal those of all ranks, with the sum of CPU times."""
    waits = [each["restore_s"] for each in responses if each["restore_s"] is not None]
    taken = {name: sum(each[name] for each in responses) for name in SUMMED_FIELDS}
    return {**responses[0], **taken, "restore_s": max(waits, default=None)}
