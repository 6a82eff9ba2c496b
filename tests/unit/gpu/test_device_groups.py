"""Device groups and their one order of batches: leaders, rendezvous, and the merged answers of the ranks."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from arl_core.domain.model import Fence
from arl_gpu.catalog.service_files import ServiceFiles
from arl_gpu.dispatch.device_groups import BatchResult, DeviceGroups, device_groups
from arl_gpu.dispatch.dispatcher import BatchDispatcher
from arl_gpu.dispatch.metrics import GpuMetrics
from arl_gpu.models.interface import Item
from arl_gpu.parallel.rendezvous import RankInfo, model_fingerprint
from arl_gpu.queue.batch_scheduler import BatchScheduler
from arl_gpu.queue.score_jobs import ScoreJob, ScoreReport
from arl_gpu.worker.client import WorkerDied
from arl_gpu.worker.host_memory import HostMemory
from arl_kit.metrics import Metrics
from support.gpu import scored

SPLITS = {"two": 2, "four": 4}
ITEMS = [{"text": "aa"}]


class Member:
    """A fake group member. Like a rank, it answers as scripted once the whole group has joined."""

    limit_s = 60.0
    host = None

    def __init__(self, pid: int) -> None:
        self.order_lock, self.pid = asyncio.Lock(), pid
        self.parts: list[tuple[str, RankInfo]] = []
        self.cancelled = False
        self.answers: list[Any] = []
        self.meets: dict[int, asyncio.Barrier] = {}

    async def ensure_process(self) -> int:
        assert self.order_lock.locked()
        return self.pid

    async def score_rank(
        self, service: str, items: Sequence[Item], waiting: Sequence[str], part: RankInfo, **about: Any
    ) -> Any:
        self.parts.append((service, part))
        answer = self.answers.pop(0) if self.answers else scored(items) | {"entries": [{"score": part.rank}]}
        try:
            if isinstance(answer, asyncio.Future):
                await answer
            elif isinstance(answer, BaseException):
                raise answer
            await self.meets.setdefault(part.meeting, asyncio.Barrier(part.size)).wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return answer

    async def score(self, service: str, items: Sequence[Item], waiting: Sequence[str] = ()) -> dict[str, Any]:
        async with self.order_lock:
            await asyncio.sleep(0)
            return scored(items)

    async def end(self) -> None: ...


def members(count: int) -> list[Member]:
    found, meets = [Member(100 + number) for number in range(count)], dict[int, asyncio.Barrier]()
    for member in found:
        member.meets = meets
    return found


def groups_over(workers: Sequence[Member], splits: Mapping[str, int] = SPLITS, *, grace_s: float = 5.0) -> DeviceGroups:
    return DeviceGroups(workers, lambda: splits, grace_s=grace_s)


async def score(groups: DeviceGroups, service: str = "two", leader: int = 0) -> BatchResult:
    async with asyncio.timeout(10):
        return await groups.score(service, leader, ITEMS, lambda number: ())


def refused(code: str) -> dict[str, Any]:
    return {"error": code, "message": f"why {code}", "states": {}, "used_bytes": 0, "moves": {}, "fitting": []}


def test_groups_are_consecutive_devices_led_by_the_first() -> None:
    groups = groups_over(members(5))
    assert [tuple(each) for each in device_groups(5, 2)] == [(0, 1), (2, 3)]
    assert [tuple(groups.members("two", number)) for number in range(5)] == [(0, 1), (0, 1), (2, 3), (2, 3), ()]
    assert [tuple(groups.members("whole", number)) for number in (0, 4)] == [(0,), (4,)]
    everything = {"two", "four"}
    assert [groups.services_not_led_by(at) for at in range(5)] == [set(), everything, {"four"}, everything, everything]


async def test_group_result_has_scores_of_first_rank_and_summed_times() -> None:
    workers = members(2)
    for rank, worker in enumerate(workers):
        worker.answers = [scored(ITEMS) | {"entries": [{"score": rank}], "forward_cpu_s": rank + 1, "restore_s": rank}]
    found = await score(groups_over(workers))
    assert (found.response["entries"], found.response["forward_cpu_s"], found.response["restore_s"]) == (
        [{"score": 0}],
        3,
        1,
    )
    assert (sorted(found.responses), found.deaths) == ([0, 1], {})


async def test_overlapping_groups_and_single_devices_never_deadlock() -> None:
    workers, rng = members(4), random.Random(3)
    groups = groups_over(workers)
    asked = [("two", 0), ("two", 2), ("four", 0), *(("whole", number) for number in range(4))]
    going = [score(groups, *rng.choice(asked)) for _ in range(300)]
    assert all("error" not in found.response for found in await asyncio.gather(*going))
    orders = [[service for service, _ in worker.parts] for worker in workers]
    assert (orders[0], orders[2]) == (orders[1], orders[3])


async def test_rendezvous_is_reused_until_worker_restart_or_failure() -> None:
    workers = members(2)
    groups = groups_over(workers)

    async def meeting() -> int:
        await score(groups)
        (_, one), (_, other) = (worker.parts[-1] for worker in workers)
        assert (one.meeting, one.path, one.rank, other.rank) == (other.meeting, other.path, 0, 1)
        return one.meeting

    assert [await meeting(), await meeting()] == [1, 1]
    workers[1].pid = 200
    assert await meeting() == 2
    workers[0].answers, workers[1].answers = [refused("no_room")], [refused("peer_not_ready")]
    assert [await meeting(), await meeting()] == [2, 3]
    groups.close()


@pytest.mark.parametrize("first", [True, False])
async def test_group_error_is_that_of_the_failing_rank(first: bool) -> None:
    workers = members(2)
    codes = ("no_room", "peer_not_ready") if first else ("peer_gone", "no_room")
    for worker, code in zip(workers, codes, strict=True):
        worker.answers = [refused(code)]
    found = await score(groups_over(workers))
    assert (found.response["error"], found.response["message"]) == ("no_room", "why no_room")


async def test_death_of_one_rank_ends_waiting_ranks() -> None:
    workers = members(4)
    workers[2].answers = [WorkerDied("killed")]
    found = await score(groups_over(workers, grace_s=0.01), "four")
    assert (found.response["error"], sorted(found.deaths), found.deaths[2]) == ("worker_died", [0, 1, 2, 3], "killed")
    assert [worker.cancelled for worker in workers] == [True, True, False, True]
    assert not any(worker.order_lock.locked() for worker in workers)


async def test_cancelled_batch_cancels_all_its_parts() -> None:
    workers = members(2)
    workers[0].answers = [asyncio.get_running_loop().create_future()]
    going = asyncio.create_task(groups_over(workers).score("two", 0, ITEMS, lambda number: ()))
    while not workers[1].parts:
        await asyncio.sleep(0)
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going
    assert [worker.cancelled for worker in workers] == [True, True]
    assert not any(worker.order_lock.locked() for worker in workers)


@pytest.mark.parametrize("items", [3, 8])
async def test_only_leaders_take_batches_and_partial_residency_is_no_replica(items: int) -> None:
    """A replica of a whole service elsewhere would make small jobs wait for it; a part does not."""
    workers, reports = members(5), asyncio.Queue[ScoreReport]()
    scoring = BatchDispatcher(
        workers,  # type: ignore[arg-type]
        reports.put_nowait,
        on_failure=pytest.fail,
        scheduler=BatchScheduler(batch_tokens=10, max_inflight_tokens=1000, model_swap_delay_s=3600.0),
        metrics=GpuMetrics(Metrics()),
        groups=groups_over(workers),
    )
    for number, device in enumerate(scoring._devices):
        device.states = {"two": "resident"} if number == 1 else {"else": "resident"}  # type: ignore[dict-item]
        device.fitting = {"two"}
    scoring._devices[4].states = {"two": "cold"}  # type: ignore[dict-item]
    assert scoring.states == {"two": "cold", "else": "resident"}, "a service on only one member is not resident"
    scoring.start()
    scoring.add(ScoreJob(Fence(uuid4(), 1), "two", 60.0, [{"text": "a"}] * items, [10] * items))
    report = await asyncio.wait_for(reports.get(), 5)
    assert report.outcome == "ok"
    first = len(workers[0].parts)
    assert [len(worker.parts) for worker in workers] == [first, first, items - first, items - first, 0]
    assert (first == items) is (items == 3), "only much work justifies a second replica"
    await scoring.stop()


class OneEngine:
    """A fake `EngineDispatcher`: the engine of device 1 is in use until the test says otherwise."""

    def __init__(self) -> None:
        self.is_used = True
        self.asked: set[tuple[int, bool]] = set()

    def is_busy(self, number: int) -> bool:
        return self.is_used and number == 1

    def blocked_services(self, number: int, *, makes_room: bool) -> set[str]:
        self.asked.add((number, makes_room))
        return set()

    def find_judge(self, service: str) -> None: ...
    def start(self, board: BatchDispatcher) -> None: ...
    def update_device(self, number: int, answer: Mapping[str, Any]) -> None: ...
    async def stop(self) -> None: ...


async def test_group_waits_for_busy_engine_on_any_member_device() -> None:
    workers, reports, engine = members(2), asyncio.Queue[ScoreReport](), OneEngine()
    workers[0].answers, workers[1].answers = [refused("peer_not_ready")], [refused("no_room")]
    scoring = BatchDispatcher(
        workers,  # type: ignore[arg-type]
        reports.put_nowait,
        on_failure=pytest.fail,
        scheduler=BatchScheduler(batch_tokens=10, max_inflight_tokens=1000),
        metrics=GpuMetrics(Metrics()),
        engine_dispatcher=engine,  # type: ignore[arg-type]
        groups=groups_over(workers),
    )
    scoring.start()
    scoring.add(ScoreJob(Fence(uuid4(), 1), "two", 60.0, [{"text": "a"}], [10]))
    async with asyncio.timeout(5):
        while (1, True) not in engine.asked:
            scoring.wake_devices()
            await asyncio.sleep(0)
    assert (len(workers[0].parts), reports.empty()) == (1, True)
    engine.is_used = False
    scoring.wake_devices()
    assert (await asyncio.wait_for(reports.get(), 5)).outcome == "ok"
    await scoring.stop()


async def test_each_rank_has_its_own_host_memory_shared_by_groups() -> None:
    host = HostMemory()
    paths: list[str] = []
    other: list[str] = []
    files = ServiceFiles(
        name="a", kind="logprobs", package="a", directory=Path("/a"), max_tokens=1, options={"tensor_parallel": 2}
    )
    for first in (0, 2):
        async with host.reserve(*((files.spec_for_device(first + rank), 1) for rank in range(2))) as found:
            paths += found or ()
    assert (paths[0], paths[1]) == (paths[2], paths[3])
    assert paths[0] != paths[1]
    async with host.reserve(*(({**files.spec_for_device(number), "since": 2.0}, 1) for number in range(2))) as found:
        other += found or ()
    host.close()
    assert len({*paths, *other}) == 4


def test_fingerprints_match_for_distinct_ranks_of_one_registration() -> None:
    spec = {"name": "a", "kind": "logprobs", "since": 1.0, "options": {"tensor_parallel": 2, "rank": 1}}
    other = {**spec, "options": {"tensor_parallel": 2, "rank": 0}}
    part = RankInfo("/path", 1, 1, 2, 60.0)
    assert model_fingerprint(spec, part) == model_fingerprint(other, RankInfo("/path", 1, 0, 2, 60.0)) != 0
    assert model_fingerprint({**spec, "since": 2.0}, part) != model_fingerprint(spec, part)
    assert model_fingerprint(other, part) == model_fingerprint({**spec, "options": {}}, part) == 0
