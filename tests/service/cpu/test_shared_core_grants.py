"""Test the CPU manager with actions that share cores, on a real Postgres."""

from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from arl_core.domain.model import CpuSharing
from arl_cpu.contract.executor import ExecSpec
from arl_wire.internal.node import CriticalChangePayload
from arl_wire.internal.scheduler import ResourcesFreedNotification
from support.conditions import eventually
from support.cpu import Cpu, managing
from support.executor import FakeExecutor
from support.rows import Rows, rows_in

SHARING = {"guarantee_milli": 100, "limit_milli": None, "is_declared": False}
SLOT = {"cpu_milli": 500, "memory_mib": 10, "disk_mib": 10}
ONE_CORE = SLOT | {"cpu_milli": 1000}


@pytest_asyncio.fixture
async def rows(database: str) -> AsyncIterator[Rows]:
    async with rows_in(database) as rows:
        yield rows


@pytest_asyncio.fixture
async def cpu(rows: Rows) -> AsyncIterator[Cpu]:
    async with managing(rows) as cpu:
        yield cpu


@pytest_asyncio.fixture
async def notified(rows: Rows) -> AsyncIterator[Cpu]:
    """Provide a manager that polls rarely, so that it learns of a grant by the notification."""
    async with managing(rows, poll_busy_s=1.0, poll_idle_s=60.0) as cpu:
        yield cpu


async def sharing(cpu: Cpu, **columns: Any) -> ExecSpec:
    """Start an action with shared cores on a node with two cores and return what the executor got."""
    await cpu.offer(await cpu.granted(amounts=SLOT, cpu_sharing=SHARING, **columns))
    return await cpu.executor.next_start()


async def reclaimable(cpu: Cpu) -> int:
    return int(await cpu.rows.value("select reclaimable_milli from node_beats where node_id = $1", cpu.manager.node_id))


async def has_reclaimable(cpu: Cpu, milli: int) -> bool:
    return await reclaimable(cpu) == milli


def empty_notifications(cpu: Cpu) -> int:
    bodies = [body for body in cpu.peers.bodies("/internal/freed") if isinstance(body, ResourcesFreedNotification)]
    return sum(not body.fences and not body.runs for body in bodies)


class TestStart:
    async def test_executor_gets_the_sharing_the_expectation_and_both_limits(self, notified: Cpu) -> None:
        action = await notified.granted(amounts=SLOT, cpu_sharing=SHARING, timeout_s=5.0, wall_timeout_s=50.0)
        await notified.offer(action, expected_cpu_s=0.25)
        spec = await notified.executor.next_start()
        assert spec.sharing == CpuSharing(guarantee_milli=100)
        assert (spec.expected_cpu_s, spec.timeout_s, spec.wall_timeout_s) == (0.25, 5.0, 50.0)
        assert (spec.cpu_milli, spec.cores) == (500, (0, 1))

    async def test_grant_that_the_poll_found_has_the_default_expectation(self, cpu: Cpu) -> None:
        await cpu.granted(amounts=SLOT, cpu_sharing=SHARING)
        assert (await cpu.executor.next_start()).expected_cpu_s == 1.0

    async def test_notification_marks_an_action_of_a_critical_trajectory(self, notified: Cpu) -> None:
        action = await notified.granted(amounts=SLOT, cpu_sharing=SHARING)
        await notified.offer(action, is_critical=True)
        assert (await notified.executor.next_start()).is_critical

    async def test_poll_marks_actions_of_critical_trajectories(self, cpu: Cpu) -> None:
        await cpu.granted(amounts=SLOT, cpu_sharing=SHARING, is_critical=True)
        assert (await cpu.executor.next_start()).is_critical
        await cpu.granted(amounts=SLOT, cpu_sharing=SHARING)
        assert not (await cpu.executor.next_start()).is_critical

    async def test_executor_gets_the_change_when_a_trajectory_becomes_critical(self, cpu: Cpu) -> None:
        fence = (await sharing(cpu)).fence
        change = CriticalChangePayload(id=fence.action_id, grant_no=fence.grant_no, is_critical=True)
        await cpu.manager.set_critical([change], epoch=uuid4())
        assert cpu.executor.critical == {}
        await cpu.manager.set_critical([change], epoch=cpu.manager.epoch)
        assert cpu.executor.critical == {fence: True}

    @pytest.mark.parametrize("policy", ["overcommitted", "static"])
    async def test_policy_with_pods_ignores_sharing(self, rows: Rows, policy: str) -> None:
        async with managing(rows, policy=policy) as cpu:
            assert (await sharing(cpu)).sharing is None


class TestCores:
    async def test_shared_attempts_leave_a_core_before_an_exclusive_attempt_starts_on_it(self, cpu: Cpu) -> None:
        seen: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

        async def look(specs: Sequence[ExecSpec]) -> None:
            seen.extend((spec.cores, cpu.executor.shared_cores[-1]) for spec in specs if spec.sharing is None)

        cpu.executor.before_start = look
        await sharing(cpu)
        alone = await cpu.running(amounts=ONE_CORE)
        assert seen == [((1,), (0,))]
        cpu.executor.finish(alone)
        await eventually(lambda: cpu.executor.shared_cores[-1] == (0, 1))

    async def test_exclusive_attempts_alone_send_nothing(self, cpu: Cpu) -> None:
        cpu.executor.finish(first := await cpu.running(amounts=ONE_CORE))
        await cpu.executor.until_acknowledged(first)
        assert cpu.executor.shared_cores == []

    async def test_restarted_manager_restores_sharing(self, rows: Rows) -> None:
        executor = FakeExecutor()
        async with managing(rows, executor) as cpu:
            await sharing(cpu)
        async with managing(rows, executor) as cpu:
            assert executor.shared_cores[-1] == (0, 1)
            await cpu.running(amounts=ONE_CORE)
            assert executor.shared_cores[-1] == (0,)


class TestUnusedCores:
    async def test_unused_cores_are_recorded_notified_and_granted(self, cpu: Cpu) -> None:
        specs = [await sharing(cpu) for _ in range(4)]
        before = empty_notifications(cpu)
        cpu.executor.report_unused(1600)
        await eventually(lambda: empty_notifications(cpu) == before + 1)
        assert await reclaimable(cpu) == 1600
        fifth = await sharing(cpu)
        assert fifth.fence not in [spec.fence for spec in specs]

    async def test_small_growth_is_recorded_without_a_notification(self, cpu: Cpu) -> None:
        for _ in range(4):
            await sharing(cpu)
        before = empty_notifications(cpu)
        cpu.executor.report_unused(200)
        await eventually(lambda: has_reclaimable(cpu, 200))
        assert empty_notifications(cpu) == before
        cpu.executor.report_unused(300)
        await eventually(lambda: empty_notifications(cpu) == before + 1)

    async def test_restart_begins_without_unused_cores(self, rows: Rows) -> None:
        executor = FakeExecutor()
        async with managing(rows, executor) as cpu:
            await sharing(cpu)
            executor.report_unused(400)
            await eventually(lambda: has_reclaimable(cpu, 400))
        async with managing(rows, executor) as cpu:
            assert await reclaimable(cpu) == 0


class TestCountedTime:
    async def test_counted_time_is_recorded_and_reported_for_estimates(self, cpu: Cpu, rows: Rows) -> None:
        fence = (await sharing(cpu)).fence
        cpu.executor.finish(fence, run_us=9_000_000, counted_us=1_000_000, cpu_us=900_000)
        await cpu.executor.until_acknowledged(fence)
        row = await rows.of(fence.action_id)
        assert (row["run_us"], row["counted_us"]) == (9_000_000, 1_000_000)
        bodies = [body for body in cpu.peers.bodies("/internal/freed") if isinstance(body, ResourcesFreedNotification)]
        assert [run.run_us for body in bodies for run in body.runs] == [1_000_000]
