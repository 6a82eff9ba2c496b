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

from arl_gpu.host_memory import HostMemory
from arl_gpu.kinds.model import Item
from arl_gpu.messages import HOST_FULL
from arl_gpu.together import Part
from arl_gpu.worker_client import WorkerDied, no_room

__all__ = ["GRACE_S", "Found", "Groups", "Member", "groups_of"]

GRACE_S = 5.0
"""For the others to notice that one of them is gone, where their sums are not made over sockets, which tell at once."""
PEER_NOT_READY = "peer_not_ready"
BY_OTHERS = ("peer_gone", PEER_NOT_READY)
"""What a worker answers where the fault is another one's."""
ADDED = ("forward_cpu_s", "model_cpu_s")
NO_SPLITS: Mapping[str, int] = {}


class Member(Protocol):
    """A worker, as far as it has a part in a batch."""

    @property
    def limit_s(self) -> float: ...
    @property
    def turn(self) -> asyncio.Lock: ...
    async def ready(self) -> int: ...
    async def score_part(
        self,
        service: str,
        items: Sequence[Item],
        waiting: Sequence[str],
        part: Part,
        *,
        room: tuple[str, int] | None = None,
    ) -> dict[str, Any]: ...
    @property
    def host(self) -> HostMemory | None: ...
    def spec(self, service: str) -> Mapping[str, Any]: ...
    async def score(self, service: str, items: Sequence[Item], waiting: Sequence[str] = ()) -> dict[str, Any]:
        """What `arl_gpu.worker` answers, but for `HOST_FULL`; it may prepare for `waiting`.

        Raises `WorkerDied`; whoever comes next may find another.
        """
        ...


@dataclass(frozen=True, slots=True)
class Found:
    """What came of a batch, or its `error`; and what was heard of each device, or what its worker died of."""

    answer: Mapping[str, Any]
    heard: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    died: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Meeting:
    """Where the workers of a group find each other. They do so once; one that is new needs a new one."""

    pids: Sequence[int]
    number: int
    descriptor: int

    @property
    def path(self) -> str:
        """Of no file that could stay: it is this process's memory."""
        return f"/proc/{os.getpid()}/fd/{self.descriptor}"


def groups_of(devices: int, size: int) -> Iterator[Sequence[int]]:
    """Numbers of devices; each alone where nothing is split."""
    return (range(first, first + size) for first in range(0, devices - size + 1, size))


class Groups:
    """`splits`: in how many parts services are, by name; others are whole."""

    def __init__(
        self,
        workers: Sequence[Member],
        splits: Callable[[], Mapping[str, int]] = lambda: NO_SPLITS,
        *,
        grace_s: float = GRACE_S,
    ) -> None:
        self._workers, self._splits, self._grace_s = workers, splits, grace_s
        self._meetings: dict[Sequence[int], _Meeting] = {}
        self._meeting_numbers = count(1)

    def members(self, service: str, number: int) -> Sequence[int]:
        """Devices that compute it together with this one, and itself; none where it is left over."""
        size = self._splits().get(service, 1)
        first = number - number % size
        return range(first, first + size) if first + size <= len(self._workers) else ()

    @property
    def splits(self) -> Mapping[str, int]:
        """In how many parts services are, by name."""
        return self._splits()

    def led_elsewhere(self, number: int) -> set[str]:
        """Services of which this device takes no batch."""
        return {name for name in self._splits() if number not in self.members(name, number)[:1]}

    async def score(
        self, service: str, leader: int, items: Sequence[Item], waiting: Callable[[int], Sequence[str]]
    ) -> Found:
        """`waiting`: what a device is needed for next. Whatever became of a worker, the next call may find another."""
        numbers = self.members(service, leader)
        found = (
            await self._score_with_room(service, numbers, items, waiting)
            if len(numbers) > 1
            else await self._score_alone(service, leader, items, waiting)
        )
        if found.died and (host := self._workers[leader].host) is not None:
            await host.empty()
        return found

    async def _score_alone(
        self, service: str, leader: int, items: Sequence[Item], waiting: Callable[[int], Sequence[str]]
    ) -> Found:
        try:
            answer = await self._workers[leader].score(service, items, waiting(leader))
        except WorkerDied as error:
            return _died({leader: str(error)}, {})
        return Found(answer, {leader: answer})

    def close(self) -> None:
        """Once nobody scores."""
        while self._meetings:
            os.close(self._meetings.popitem()[1].descriptor)

    async def _score_with_room(
        self, service: str, numbers: Sequence[int], items: Sequence[Item], waiting: Callable[[int], Sequence[str]]
    ) -> Found:
        """A rank that finds that its files were replaced reads them anew, and may ask for room after others did."""
        sizes: dict[int, int] = {}
        found = await self._score_together(service, numbers, items, waiting, {})
        while full := _asking(found, sizes):
            sizes |= full
            wanted = [(self._workers[number].spec(service), size) for number, size in sizes.items()]
            host = self._workers[numbers[0]].host
            assert host is not None
            # All at once: of two groups none waits for what another one has a part of already.
            async with host.room(*wanted, waiting=waiting(numbers[0])) as paths:
                if paths is None:
                    break
                room = dict(zip(sizes, zip(paths, sizes.values(), strict=True), strict=True))
                found = await self._score_together(service, numbers, items, waiting, room)
        return replace(found, answer=no_room({**found.answer}))

    async def _score_together(
        self,
        service: str,
        numbers: Sequence[int],
        items: Sequence[Item],
        waiting: Callable[[int], Sequence[str]],
        room: Mapping[int, tuple[str, int]],
    ) -> Found:
        """`room`: for the worker of a device, where it may keep what it reads first."""
        async with AsyncExitStack() as turns:
            # Always in this order: of groups that overlap, none waits for what another one holds and the other way.
            for number in numbers:
                await turns.enter_async_context(self._workers[number].turn)
            pids: list[int] = []
            for number in numbers:
                try:
                    pids.append(await self._workers[number].ready())
                except WorkerDied as error:
                    return _died({number: str(error)}, {})
            meeting = self._meeting(numbers, pids)
            workers = [self._workers[number] for number in numbers]
            parts = [
                worker.score_part(
                    service,
                    items,
                    waiting(number),
                    Part(meeting.path, meeting.number, rank, len(numbers), worker.limit_s),
                    room=room.get(number),
                )
                for rank, (number, worker) in enumerate(zip(numbers, workers, strict=True))
            ]
            found = _joined(numbers, await self._ended(parts))
            if not _meets_still(found):
                self._adjourn(numbers)
            return found

    def _meeting(self, numbers: Sequence[int], pids: Sequence[int]) -> _Meeting:
        """Where all of them have been, or none."""
        if (held := self._meetings.get(numbers)) is not None and held.pids == pids:
            return held
        self._adjourn(numbers)
        descriptor = os.memfd_create("meeting", os.MFD_CLOEXEC)
        self._meetings[numbers] = meeting = _Meeting(pids, next(self._meeting_numbers), descriptor)
        return meeting

    def _adjourn(self, numbers: Sequence[int]) -> None:
        if (held := self._meetings.pop(numbers, None)) is not None:
            os.close(held.descriptor)

    async def _ended(self, parts: Sequence[Any]) -> "list[asyncio.Task[dict[str, Any]]]":
        """All of them. Once one has failed, those that don't notice it are cancelled, which ends their workers."""
        tasks = [asyncio.create_task(part, name="part of a batch") for part in parts]
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


def _joined(numbers: Sequence[int], tasks: "Sequence[asyncio.Task[dict[str, Any]]]") -> Found:
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
        return _died(died, heard)
    failed = [each for each in heard.values() if "error" in each]
    if failed:
        return Found(next((each for each in failed if each["error"] not in BY_OTHERS), failed[0]), heard)
    return Found(_added([*heard.values()]), heard)


def _meets_still(found: Found) -> bool:
    """Also where its workers agreed that not all of them can begin yet."""
    errors = {heard["error"] for heard in found.heard.values() if "error" in heard}
    return not found.died and errors <= {HOST_FULL, PEER_NOT_READY}


def _asking(found: Found, sizes: Mapping[int, int]) -> dict[int, int]:
    """Of each device whose worker has to read its part first, and was given no room for that, its bytes."""
    full = {number: heard["host_bytes"] for number, heard in found.heard.items() if heard.get("error") == HOST_FULL}
    return {number: size for number, size in full.items() if sizes.get(number) != size}


def _died(died: Mapping[int, str], heard: Mapping[int, Mapping[str, Any]]) -> Found:
    return Found({"error": "worker_died", "message": "; ".join(died.values())}, heard, died)


def _added(answers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The first rank's entries, which all have found, and what all of them took for it."""
    waits = [each["restore_s"] for each in answers if each["restore_s"] is not None]
    taken = {name: sum(each[name] for each in answers) for name in ADDED}
    return {**answers[0], **taken, "restore_s": max(waits, default=None)}
