"""Devices that compute a service together: which they are, and one order for all of their workers at once.

Of a service that is split in k, devices 0 to k-1 are the first group, the next k the second one, and so on; those that
are left over have nothing of it. The first of a group leads: only its loop takes batches of the service.
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
"""For the others to notice that one of them is gone, where their sums are not made over sockets, which tell at once."""
PEER_NOT_READY = "peer_not_ready"
PEER_FAULT_CODES = ("peer_gone", PEER_NOT_READY)
"""What a worker answers where the fault is another one's."""
SUMMED_FIELDS = ("forward_cpu_s", "model_cpu_s")
NO_SPLITS: Mapping[str, int] = {}


class GroupMember(Protocol):
    """A worker, as far as it has a part in a batch."""

    @property
    def limit_s(self) -> float: ...
    @property
    def order_lock(self) -> asyncio.Lock: ...
    async def ensure_process(self) -> int: ...
    async def score_rank(
        self,
        service: str,
        items: Sequence[Item],
        waiting: Sequence[str],
        rank_info: RankInfo,
        *,
        room: tuple[str, int] | None = None,
    ) -> dict[str, Any]: ...
    @property
    def host(self) -> HostMemory | None: ...
    def spec(self, service: str) -> Mapping[str, Any]: ...
    async def score(self, service: str, items: Sequence[Item], waiting: Sequence[str] = ()) -> dict[str, Any]:
        """What `arl_gpu.worker.process` answers, but for `HOST_FULL`; it may prepare for `waiting`.

        Raises `WorkerDied`; whoever comes next may find another.
        """
        ...


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What came of a batch, or its `error`; and what was heard of each device, or what its worker died of."""

    response: Mapping[str, Any]
    responses: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    deaths: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Rendezvous:
    """Where the workers of a group find each other. They do so once; one that is new needs a new one."""

    pids: Sequence[int]
    number: int
    descriptor: int

    @property
    def path(self) -> str:
        """Of no file that could stay: it is this process's memory."""
        return f"/proc/{os.getpid()}/fd/{self.descriptor}"


def device_groups(devices: int, size: int) -> Iterator[Sequence[int]]:
    """Numbers of devices; each alone where nothing is split."""
    return (range(first, first + size) for first in range(0, devices - size + 1, size))


class DeviceGroups:
    """`splits`: in how many parts services are, by name; others are whole."""

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
        """Devices that compute it together with this one, and itself; none where it is left over."""
        size = self._splits().get(service, 1)
        first = number - number % size
        return range(first, first + size) if first + size <= len(self._workers) else ()

    @property
    def splits(self) -> Mapping[str, int]:
        """In how many parts services are, by name."""
        return self._splits()

    def services_not_led_by(self, number: int) -> set[str]:
        """Services of which this device takes no batch."""
        return {name for name in self._splits() if number not in self.members(name, number)[:1]}

    async def score(
        self, service: str, leader: int, items: Sequence[Item], waiting: Callable[[int], Sequence[str]]
    ) -> BatchResult:
        """`waiting`: what a device is needed for next. Whatever became of a worker, the next call may find another."""
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
        """Once nobody scores."""
        while self._rendezvous:
            os.close(self._rendezvous.popitem()[1].descriptor)

    async def _score_with_room(
        self, service: str, numbers: Sequence[int], items: Sequence[Item], waiting: Callable[[int], Sequence[str]]
    ) -> BatchResult:
        """A rank that finds that its files were replaced reads them anew, and may ask for room after others did."""
        sizes: dict[int, int] = {}
        found = await self._score_on_group(service, numbers, items, waiting, {})
        while full := _host_memory_requests(found, sizes):
            sizes |= full
            wanted = [(self._workers[number].spec(service), size) for number, size in sizes.items()]
            host = self._workers[numbers[0]].host
            assert host is not None
            # All at once: of two groups none waits for what another one has a part of already.
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
        """`room`: for the worker of a device, where it may keep what it reads first."""
        async with AsyncExitStack() as turns:
            # Always in this order: of groups that overlap, none waits for what another one holds and the other way.
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
        """Where all of them have been, or none."""
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
        """All of them. Once one has failed, those that don't notice it are cancelled, which ends their workers."""
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
            died[number] = "it did not notice that another one of its group had failed"
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
    """Also where its workers agreed that not all of them can begin yet."""
    errors = {heard["error"] for heard in found.responses.values() if "error" in heard}
    return not found.deaths and errors <= {HOST_FULL, PEER_NOT_READY}


def _host_memory_requests(found: BatchResult, sizes: Mapping[int, int]) -> dict[int, int]:
    """Of each device whose worker has to read its part first, and was given no room for that, its bytes."""
    full = {number: heard["host_bytes"] for number, heard in found.responses.items() if heard.get("error") == HOST_FULL}
    return {number: size for number, size in full.items() if sizes.get(number) != size}


def _death_result(deaths: Mapping[int, str], responses: Mapping[int, Mapping[str, Any]]) -> BatchResult:
    return BatchResult({"error": "worker_died", "message": "; ".join(deaths.values())}, responses, deaths)


def _sum_responses(responses: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The first rank's entries, which all have found, and what all of them took for it."""
    waits = [each["restore_s"] for each in responses if each["restore_s"] is not None]
    taken = {name: sum(each[name] for each in responses) for name in SUMMED_FIELDS}
    return {**responses[0], **taken, "restore_s": max(waits, default=None)}
