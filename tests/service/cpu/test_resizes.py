"""Test resizes of running actions on a real Postgres, with an executor that the test controls."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio

from arl_core.domain.model import Fence
from arl_cpu.contract.executor import AttemptResize
from arl_store.logins import role_url
from arl_wire.internal.node import ResizePayload, ResizeResult
from support.cpu import Cpu, managing
from support.postgres import PASSWORDS
from support.rows import AMOUNTS, Rows, rows_in

HALF = AMOUNTS | {"cpu_milli": 500}
BOTH = AMOUNTS | {"cpu_milli": 2000}
GROWN = "update actions set amounts = $2::jsonb, amounts_seq = $3 where id = $1"


@pytest_asyncio.fixture
async def rows(database: str) -> AsyncIterator[Rows]:
    async with rows_in(database) as rows:
        yield rows


@pytest_asyncio.fixture
async def cpu(rows: Rows) -> AsyncIterator[Cpu]:
    async with managing(rows) as cpu:
        yield cpu


async def as_scheduler(rows: Rows, statement: str, *values: object) -> None:
    """Run the statement with the scheduler role's database rights."""
    connection = await asyncpg.connect(role_url(rows.owner_url, "scheduler", PASSWORDS["scheduler"]))
    try:
        await connection.execute(statement, *values)
    finally:
        await connection.close()


def a_resize(fence: Fence, cpu_milli: int, *, seq: int = 1) -> ResizePayload:
    return ResizePayload(id=fence.action_id, grant_no=fence.grant_no, cpu_milli=cpu_milli, amounts_seq=seq)


async def resize(cpu: Cpu, *bodies: ResizePayload) -> list[ResizeResult]:
    return await cpu.manager.resize(bodies, epoch=cpu.manager.epoch)


def said(answer: ResizeResult) -> tuple[str, int | None, int | None, int]:
    return answer.status, answer.cpu_milli, answer.amounts_seq, answer.free_cpu_milli


def given(cpu: Cpu, fence: Fence) -> tuple[int, int, int]:
    """Return the action's milli-cores, number of cores and resize sequence number in the executor."""
    spec = cpu.executor.running[fence]
    return spec.cpu_milli, len(spec.cores), spec.resize_seq


class TestResize:
    async def test_growth_takes_free_cores(self, cpu: Cpu) -> None:
        fence = await cpu.running()
        (answer,) = await resize(cpu, a_resize(fence, 2000))
        assert said(answer) == ("done", 2000, 1, 0)
        assert given(cpu, fence) == (2000, 2, 1)

    async def test_growth_above_free_cores_is_refused_with_the_free_amount(self, cpu: Cpu) -> None:
        fence, _ = await cpu.running(), await cpu.running(amounts=HALF)
        (answer,) = await resize(cpu, a_resize(fence, 2000))
        assert said(answer) == ("full", 1000, 0, 500)
        assert given(cpu, fence) == (1000, 1, 0)

    async def test_cores_freed_by_a_shrink_can_be_allocated(self, cpu: Cpu) -> None:
        fence = await cpu.running(amounts=BOTH)
        (answer,) = await resize(cpu, a_resize(fence, 1000))
        assert said(answer) == ("done", 1000, 1, 1000)
        await cpu.offer(await cpu.granted())
        other = await cpu.executor.next_start()
        assert not set(other.cores) & set(cpu.executor.running[fence].cores)

    async def test_cores_of_a_shrink_stay_allocated_until_the_executor_confirms(self, cpu: Cpu, rows: Rows) -> None:
        fence = await cpu.running(amounts=BOTH)
        confirm, asked = asyncio.Event(), asyncio.Event()

        async def hold(_: Sequence[AttemptResize]) -> None:
            asked.set()
            await confirm.wait()

        cpu.executor.before_resize = hold
        shrinking = asyncio.create_task(resize(cpu, a_resize(fence, 1000)))
        await asked.wait()
        early = await cpu.granted()
        await rows.until_state(early, "queued")
        confirm.set()
        await shrinking
        late = await cpu.running()
        assert cpu.executor.started == [fence, late]

    async def test_shrinks_of_a_batch_are_applied_before_its_growths(self, cpu: Cpu) -> None:
        first, second = await cpu.running(), await cpu.running()
        answers = await resize(cpu, a_resize(first, 1500), a_resize(second, 500))
        assert [answer.status for answer in answers] == ["done", "done"]
        assert (given(cpu, first)[0], given(cpu, second)[0]) == (1500, 500)

    async def test_resize_between_whole_and_fractional_cores_works_both_ways(self, cpu: Cpu) -> None:
        fence = await cpu.running()
        for seq, (cpu_milli, cores, free) in enumerate(
            [(500, 1, 1500), (1500, 2, 500), (2000, 2, 0), (1500, 2, 500), (1000, 1, 1000)], start=1
        ):
            (answer,) = await resize(cpu, a_resize(fence, cpu_milli, seq=seq))
            assert said(answer) == ("done", cpu_milli, seq, free)
            assert given(cpu, fence) == (cpu_milli, cores, seq)

    @pytest.mark.parametrize("seq", [1, 2])
    async def test_resize_with_an_old_sequence_number_is_stale(self, cpu: Cpu, seq: int) -> None:
        fence = await cpu.running()
        await resize(cpu, a_resize(fence, 2000, seq=2))
        (answer,) = await resize(cpu, a_resize(fence, 1000, seq=seq))
        assert said(answer) == ("stale", 2000, 2, 0)
        assert given(cpu, fence) == (2000, 2, 2)

    async def test_highest_sequence_number_of_an_action_in_a_batch_applies(self, cpu: Cpu) -> None:
        fence = await cpu.running()
        answers = await resize(cpu, a_resize(fence, 2000, seq=3), a_resize(fence, 500, seq=2))
        assert [answer.status for answer in answers] == ["done", "stale"]
        assert given(cpu, fence) == (2000, 2, 3)

    async def test_repeated_resize_returns_the_same_result(self, cpu: Cpu) -> None:
        fence = await cpu.running()
        first, second = [await resize(cpu, a_resize(fence, 2000)) for _ in range(2)]
        assert first == second

    async def test_resize_of_an_unknown_fence_is_absent(self, cpu: Cpu, rows: Rows) -> None:
        ended = await cpu.running()
        cpu.executor.finish(ended)
        await cpu.executor.until_acknowledged(ended)
        running = await cpu.running()
        unknown = [ended, Fence(UUID(int=1), 1), Fence(running.action_id, 2)]
        answers = await resize(cpu, *(a_resize(fence, 500) for fence in unknown))
        assert [said(answer) for answer in answers] == [("absent", None, None, 1000)] * 3
        assert given(cpu, running) == (1000, 1, 0)

    async def test_action_that_ends_during_a_resize_is_absent_and_freed(self, cpu: Cpu) -> None:
        fence = await cpu.running()

        async def end(resizes: Sequence[AttemptResize]) -> None:
            for each in resizes:
                cpu.executor.finish(each.fence)

        cpu.executor.before_resize = end
        (answer,) = await resize(cpu, a_resize(fence, 2000))
        assert answer.status == "absent"
        await cpu.executor.until_acknowledged(fence)
        assert (await cpu.running(amounts=BOTH)) in cpu.executor.running

    async def test_resize_for_another_node_epoch_is_absent(self, cpu: Cpu) -> None:
        fence = await cpu.running()
        (answer,) = await cpu.manager.resize([a_resize(fence, 2000)], epoch=UUID(int=99))
        assert answer.status == "absent"
        assert given(cpu, fence) == (1000, 1, 0)

    async def test_cancelled_resize_batch_frees_no_cores(self, cpu: Cpu, rows: Rows) -> None:
        fence = await cpu.running(amounts=BOTH)
        asked = asyncio.Event()

        async def hold(_: Sequence[AttemptResize]) -> None:
            asked.set()
            await asyncio.Event().wait()

        cpu.executor.before_resize = hold
        broken = asyncio.create_task(resize(cpu, a_resize(fence, 1000)))
        await asked.wait()
        broken.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await broken
        await rows.until_state(await cpu.granted(), "queued")
        cpu.executor.before_resize = None
        (answer,) = await resize(cpu, a_resize(fence, 1000))
        assert said(answer) == ("done", 1000, 1, 1000)


class TestPoll:
    async def test_growth_found_only_in_the_row_is_applied(self, cpu: Cpu, rows: Rows) -> None:
        fence = await cpu.running()
        asked = asyncio.Event()

        async def note(_: Sequence[AttemptResize]) -> None:
            asked.set()

        cpu.executor.before_resize = note
        await as_scheduler(rows, GROWN, fence.action_id, json.dumps(BOTH), 1)
        await asyncio.wait_for(asked.wait(), 10)
        (answer,) = await resize(cpu, a_resize(fence, 2000))
        assert said(answer) == ("done", 2000, 1, 0)

    async def test_outdated_row_does_not_undo_a_confirmed_shrink(self, cpu: Cpu) -> None:
        fence = await cpu.running(amounts=BOTH)
        await resize(cpu, a_resize(fence, 1000))
        other = await cpu.running()  # a poll brought it, or came by meanwhile
        assert given(cpu, fence) == (1000, 1, 1)
        assert given(cpu, other) == (1000, 1, 0)


class TestAdoption:
    async def test_new_manager_adopts_the_sizes_that_the_executor_runs(self, cpu: Cpu, rows: Rows) -> None:
        """The row of a confirmed shrink is not written yet, but another action already has its cores."""
        fence = await cpu.running(amounts=BOTH)
        await resize(cpu, a_resize(fence, 1000))
        other = await cpu.running()
        await cpu.manager.stop()
        async with managing(rows, cpu.executor) as next_cpu:
            answers = await resize(next_cpu, a_resize(fence, 1000), a_resize(other, 500))
            assert [said(answer) for answer in answers] == [("done", 1000, 1, 500), ("done", 500, 1, 500)]
