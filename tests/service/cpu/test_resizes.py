"""Resizes of running actions, on a real Postgres and an executor that the test drives."""

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
from arl_store.migrate import role_url
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
    """With no more rights than it has."""
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
    """Milli-cores, number of cores and sequence number that the executor runs it with."""
    spec = cpu.executor.running[fence]
    return spec.cpu_milli, len(spec.cores), spec.resize_seq


class TestResize:
    async def test_a_growth_takes_free_cores(self, cpu: Cpu) -> None:
        fence = await cpu.running()
        (answer,) = await resize(cpu, a_resize(fence, 2000))
        assert said(answer) == ("done", 2000, 1, 0)
        assert given(cpu, fence) == (2000, 2, 1)

    async def test_a_growth_beyond_what_is_free_is_refused_with_what_is_free(self, cpu: Cpu) -> None:
        fence, _ = await cpu.running(), await cpu.running(amounts=HALF)
        (answer,) = await resize(cpu, a_resize(fence, 2000))
        assert said(answer) == ("full", 1000, 0, 500)
        assert given(cpu, fence) == (1000, 1, 0)

    async def test_what_a_shrink_gives_back_can_be_taken(self, cpu: Cpu) -> None:
        fence = await cpu.running(amounts=BOTH)
        (answer,) = await resize(cpu, a_resize(fence, 1000))
        assert said(answer) == ("done", 1000, 1, 1000)
        await cpu.offer(await cpu.granted())
        other = await cpu.executor.next_start()
        assert not set(other.cores) & set(cpu.executor.running[fence].cores)

    async def test_cores_of_a_shrink_are_not_free_before_the_executor_has_confirmed(self, cpu: Cpu, rows: Rows) -> None:
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

    async def test_shrinks_of_a_batch_make_room_for_its_growths(self, cpu: Cpu) -> None:
        first, second = await cpu.running(), await cpu.running()
        answers = await resize(cpu, a_resize(first, 1500), a_resize(second, 500))
        assert [answer.status for answer in answers] == ["done", "done"]
        assert (given(cpu, first)[0], given(cpu, second)[0]) == (1500, 500)

    async def test_between_whole_cores_and_fractions_both_ways(self, cpu: Cpu) -> None:
        fence = await cpu.running()
        for seq, (cpu_milli, cores, free) in enumerate(
            [(500, 1, 1500), (1500, 2, 500), (2000, 2, 0), (1500, 2, 500), (1000, 1, 1000)], start=1
        ):
            (answer,) = await resize(cpu, a_resize(fence, cpu_milli, seq=seq))
            assert said(answer) == ("done", cpu_milli, seq, free)
            assert given(cpu, fence) == (cpu_milli, cores, seq)

    @pytest.mark.parametrize("seq", [1, 2])
    async def test_a_lower_or_equal_number_changes_nothing(self, cpu: Cpu, seq: int) -> None:
        fence = await cpu.running()
        await resize(cpu, a_resize(fence, 2000, seq=2))
        (answer,) = await resize(cpu, a_resize(fence, 1000, seq=seq))
        assert said(answer) == ("stale", 2000, 2, 0)
        assert given(cpu, fence) == (2000, 2, 2)

    async def test_of_one_action_in_a_batch_the_highest_number_counts(self, cpu: Cpu) -> None:
        fence = await cpu.running()
        answers = await resize(cpu, a_resize(fence, 2000, seq=3), a_resize(fence, 500, seq=2))
        assert [answer.status for answer in answers] == ["done", "stale"]
        assert given(cpu, fence) == (2000, 2, 3)

    async def test_the_same_resize_again_is_done_already(self, cpu: Cpu) -> None:
        fence = await cpu.running()
        first, second = [await resize(cpu, a_resize(fence, 2000)) for _ in range(2)]
        assert first == second

    async def test_a_fence_that_does_not_run_here_is_absent(self, cpu: Cpu, rows: Rows) -> None:
        ended = await cpu.running()
        cpu.executor.finish(ended)
        await cpu.executor.until_acknowledged(ended)
        running = await cpu.running()
        unknown = [ended, Fence(UUID(int=1), 1), Fence(running.action_id, 2)]
        answers = await resize(cpu, *(a_resize(fence, 500) for fence in unknown))
        assert [said(answer) for answer in answers] == [("absent", None, None, 1000)] * 3
        assert given(cpu, running) == (1000, 1, 0)

    async def test_one_that_ends_meanwhile_is_absent_and_its_cores_are_free(self, cpu: Cpu) -> None:
        fence = await cpu.running()

        async def end(resizes: Sequence[AttemptResize]) -> None:
            for each in resizes:
                cpu.executor.finish(each.fence)

        cpu.executor.before_resize = end
        (answer,) = await resize(cpu, a_resize(fence, 2000))
        assert answer.status == "absent"
        await cpu.executor.until_acknowledged(fence)
        assert (await cpu.running(amounts=BOTH)) in cpu.executor.running

    async def test_another_life_of_the_node_is_not_this_one(self, cpu: Cpu) -> None:
        fence = await cpu.running()
        (answer,) = await cpu.manager.resize([a_resize(fence, 2000)], epoch=UUID(int=99))
        assert answer.status == "absent"
        assert given(cpu, fence) == (1000, 1, 0)

    async def test_a_batch_that_is_broken_off_frees_nothing(self, cpu: Cpu, rows: Rows) -> None:
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
    async def test_a_growth_in_the_row_that_no_call_brought_is_applied(self, cpu: Cpu, rows: Rows) -> None:
        fence = await cpu.running()
        asked = asyncio.Event()

        async def note(_: Sequence[AttemptResize]) -> None:
            asked.set()

        cpu.executor.before_resize = note
        await as_scheduler(rows, GROWN, fence.action_id, json.dumps(BOTH), 1)
        await asyncio.wait_for(asked.wait(), 10)
        (answer,) = await resize(cpu, a_resize(fence, 2000))
        assert said(answer) == ("done", 2000, 1, 0)

    async def test_a_row_behind_a_confirmed_shrink_takes_nothing_back(self, cpu: Cpu) -> None:
        fence = await cpu.running(amounts=BOTH)
        await resize(cpu, a_resize(fence, 1000))
        other = await cpu.running()  # a poll brought it, or came by meanwhile
        assert given(cpu, fence) == (1000, 1, 1)
        assert given(cpu, other) == (1000, 1, 0)


class TestAdopt:
    async def test_a_new_manager_goes_on_with_what_the_executor_runs(self, cpu: Cpu, rows: Rows) -> None:
        """The row of a confirmed shrink is not written yet; its cores were given to another."""
        fence = await cpu.running(amounts=BOTH)
        await resize(cpu, a_resize(fence, 1000))
        other = await cpu.running()
        await cpu.manager.stop()
        async with managing(rows, cpu.executor) as next_cpu:
            answers = await resize(next_cpu, a_resize(fence, 1000), a_resize(other, 500))
            assert [said(answer) for answer in answers] == [("done", 1000, 1, 500), ("done", 500, 1, 500)]
