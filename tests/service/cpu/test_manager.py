"""Test the CPU manager on a real Postgres, with an executor that the test controls."""

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from arl_core.domain.model import Fence
from arl_cpu.contract.executor import CapturedStream, ExecSpec, NodeCapability
from arl_cpu.templates.byte_streams import ImportBudget
from arl_cpu.templates.importer import import_template, remove_template
from arl_cpu.templates.template_store import TemplateStore
from arl_wire.internal.scheduler import ResourcesFreedNotification
from support.builders import EPOCH
from support.conditions import eventually
from support.cpu import Cpu, managing
from support.executor import FakeExecutor
from support.rows import Rows, rows_in

TAKEN_AWAY = "update actions set state = 'queued', admitted_xid = pg_current_xact_id() where id = $1"
WISHED = "update actions set cancel_requested_at = now() where id = $1"
WHOLE_NODE = {"cpu_milli": 2000, "memory_mib": 1000, "disk_mib": 1000}


@pytest_asyncio.fixture
async def rows(database: str) -> AsyncIterator[Rows]:
    async with rows_in(database) as rows:
        yield rows


@pytest_asyncio.fixture
async def cpu(rows: Rows) -> AsyncIterator[Cpu]:
    async with managing(rows) as cpu:
        yield cpu


def was_freed(cpu: Cpu, fence: Fence) -> bool:
    hints = [body for body in cpu.peers.bodies("/internal/freed") if isinstance(body, ResourcesFreedNotification)]
    return fence in [Fence(each.id, each.grant_no) for hint in hints for each in (*hint.fences, *hint.runs)]


class TestStart:
    async def test_attempt_starts_only_after_its_running_state_is_committed(self, cpu: Cpu, rows: Rows) -> None:
        seen: list[str] = []

        async def look(specs: Sequence[ExecSpec]) -> None:
            seen.extend([(await rows.of(spec.fence.action_id))["state"] for spec in specs])

        cpu.executor.before_start = look
        await cpu.running()
        assert seen == ["running"]

    async def test_grant_without_notification_is_found_by_the_poll(self, cpu: Cpu) -> None:
        action = await cpu.granted()
        assert (await cpu.executor.next_start()).fence == Fence(action, 1)

    async def test_unreadable_action_settles_without_blocking_other_grants(self, cpu: Cpu, rows: Rows) -> None:
        bad, good = await cpu.granted(), await cpu.granted()
        await rows.execute("update action_specs set payload = '{}' where id = $1", bad)
        await cpu.offer(bad, good)
        assert (await cpu.executor.next_start()).fence == Fence(good, 1)
        assert (await rows.until_state(bad, "settled"))["reason"] == "setup_failed"

    async def test_duplicate_grant_of_a_running_action_is_ignored(self, cpu: Cpu, rows: Rows) -> None:
        """A duplicate grant neither starts the action again nor frees the allocation of the first."""
        fence = await cpu.running()
        await cpu.offer(fence.action_id)
        other = await cpu.running()
        full = await cpu.granted()
        await rows.until_state(full, "queued")
        assert await rows.value("select reason from attempts where id = $1", full) == "refused"
        assert cpu.executor.started == [fence, other]

    async def test_duplicate_grant_after_the_end_is_ignored(self, cpu: Cpu, rows: Rows) -> None:
        fence = await cpu.running()
        cpu.executor.finish(fence)
        await cpu.peers.until(lambda _: was_freed(cpu, fence))
        await cpu.offer(fence.action_id)
        other = await cpu.running()
        assert cpu.executor.started == [fence, other]
        assert await rows.state(fence.action_id) == ("settled", "ok", None)

    @pytest.mark.parametrize("environment", [None, UUID(int=5)])
    async def test_grant_with_a_lost_fence_does_not_start_or_allocate(self, environment: UUID | None, cpu: Cpu) -> None:
        """Starts run in order, so the first grant was dropped if the second one has started."""
        large = {"cpu_milli": 1000, "memory_mib": 900, "disk_mib": 900}
        await cpu.offer(await cpu.granted(state="queued", node_id=None), amounts=large, environment_id=environment)
        second = await cpu.running()
        third = await cpu.running(amounts=large)
        assert cpu.executor.started == [second, third]

    async def test_grant_to_an_earlier_node_epoch_is_ignored(self, cpu: Cpu, rows: Rows) -> None:
        action = await cpu.granted(node_epoch=UUID(int=99))
        await cpu.manager.accept_grants([], epoch=UUID(int=99))
        await cpu.running()
        assert (await rows.of(action))["state"] == "granted"

    async def test_action_cancelled_before_its_start_settles_without_starting(self, cpu: Cpu, rows: Rows) -> None:
        action = await cpu.granted(cancel_requested_at=await rows.value("select now()"))
        await rows.until_state(action, "settled")
        assert await rows.state(action) == ("settled", "cancelled", None)
        assert cpu.executor.started == []

    async def test_executor_receives_distinct_cores_per_action(self, cpu: Cpu) -> None:
        specs = []
        for _ in range(2):
            await cpu.offer(await cpu.granted())
            specs.append(await cpu.executor.next_start())
        assert sorted(core for spec in specs for core in spec.cores) == [0, 1]

    @pytest.mark.parametrize(("elastic", "widest"), [(None, 0), ({"resource": "cpu_milli", "max": 4000}, 4000)])
    async def test_executor_receives_the_maximum_cores_of_an_elastic_action(
        self, cpu: Cpu, elastic: dict[str, object] | None, widest: int
    ) -> None:
        await cpu.offer(await cpu.granted(elastic=elastic))
        assert (await cpu.executor.next_start()).max_cpu_milli == widest


class TestTemplates:
    async def test_node_publishes_its_templates_after_every_change(self, rows: Rows, tmp_path: Path) -> None:
        store = TemplateStore(tmp_path / "store")
        (tmp_path / "tree").mkdir()
        budget = ImportBudget(max_bytes=1 << 20, max_members=10)
        first = import_template(store, tmp_path / "tree", "first", budget=budget)
        executor = FakeExecutor()
        can = NodeCapability(name="templates", level="enforced", mechanism="test")
        executor.state = replace(executor.state, capabilities=(can,))
        async with managing(rows, executor, templates_dir=store.directory):
            assert await published(rows) == [{"name": "first", "digest": first.digest, "bytes": first.bytes}]
            import_template(store, tmp_path / "tree", "second", budget=budget)
            await eventually(lambda: has_published(rows, ["first", "second"]))
            remove_template(store, "first")
            await eventually(lambda: has_published(rows, ["second"]))

    async def test_node_without_template_support_publishes_none(self, rows: Rows, tmp_path: Path) -> None:
        store = TemplateStore(tmp_path / "store")
        (tmp_path / "tree").mkdir()
        import_template(store, tmp_path / "tree", "t", budget=ImportBudget(max_bytes=1 << 20, max_members=10))
        async with managing(rows, templates_dir=store.directory):
            assert await published(rows) == []


async def published(rows: Rows) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(await rows.value("select templates::text from nodes"))
    return found


async def has_published(rows: Rows, names: list[str]) -> bool:
    return [each["name"] for each in await published(rows)] == names


class TestRefusedGrants:
    async def test_grant_that_does_not_fit_is_requeued(self, cpu: Cpu, rows: Rows) -> None:
        held = [await cpu.running(), await cpu.running()]
        action = await cpu.granted()
        await cpu.peers.until(lambda _: was_freed(cpu, Fence(action, 1)))
        row = await rows.of(action)
        assert (row["state"], row["grant_no"], row["failures"]) == ("queued", 1, 0)
        assert cpu.executor.started == held

    async def test_second_action_of_a_busy_environment_is_requeued(self, cpu: Cpu, rows: Rows) -> None:
        inside = {"trajectory": "x", "scope": "trajectory", "environment_id": uuid4()}
        await cpu.running(**inside)
        second = await cpu.granted(**inside)
        await rows.until_state(second, "queued")

    async def test_freed_resources_can_be_allocated_again(self, cpu: Cpu) -> None:
        for _ in range(3):
            fence = await cpu.running(amounts=WHOLE_NODE)
            cpu.executor.finish(fence)
            await cpu.peers.until(lambda _, fence=fence: was_freed(cpu, fence))


class TestSettle:
    async def test_outcome_and_result_are_written_once(self, cpu: Cpu, rows: Rows) -> None:
        fence = await cpu.running()
        cpu.executor.finish(fence, "ok", stdout=CapturedStream(b"hi", 2))
        await cpu.executor.until_acknowledged(fence)
        cpu.executor.finish(fence, "user_error", exit_code=1)
        await cpu.executor.until_acknowledged(fence, times=2)
        assert await rows.state(fence.action_id) == ("settled", "ok", None)
        sql = "select grant_no, exit_code, stdout from action_results where id = $1"
        assert [tuple(row) for row in await rows.pool.fetch(sql, fence.action_id)] == [(1, 0, b"hi")]

    async def test_duplicate_report_does_not_delay_other_reports(
        self, cpu: Cpu, rows: Rows, caplog: pytest.LogCaptureFixture
    ) -> None:
        first, second = await cpu.running(), await cpu.running()
        for fence in (first, first, second):
            cpu.executor.finish(fence)
        await cpu.executor.until_acknowledged(second)
        assert [await rows.state(fence.action_id) for fence in (first, second)] == [("settled", "ok", None)] * 2
        assert "trying again" not in caplog.text

    async def test_infrastructure_error_is_requeued_while_retries_are_left(self, cpu: Cpu, rows: Rows) -> None:
        fence = await cpu.running(retries=1)
        cpu.executor.finish(fence, "infra_error", reason="agent_lost")
        row = await rows.until_state(fence.action_id, "queued")
        assert (row["failures"], row["outcome"], row["reason"], row["grant_no"]) == (1, None, None, 1)
        kept = await rows.pool.fetchrow("select * from attempts where id = $1", fence.action_id)
        assert (kept["grant_no"], kept["reason"], kept["started_at"]) == (1, "agent_lost", row["started_at"])
        assert await rows.value("select count(*) from action_results") == 0

    async def test_infrastructure_error_without_retries_settles_with_its_reason(self, cpu: Cpu, rows: Rows) -> None:
        fence = await cpu.running(retries=1, failures=1)
        cpu.executor.finish(fence, "infra_error", reason="agent_lost")
        await rows.until_state(fence.action_id, "settled")
        assert await rows.state(fence.action_id) == ("settled", "infra_error", "agent_lost")

    async def test_user_error_is_never_retried(self, cpu: Cpu, rows: Rows) -> None:
        fence = await cpu.running(retries=5)
        cpu.executor.finish(fence, "user_error", exit_code=1)
        assert (await rows.until_state(fence.action_id, "settled"))["outcome"] == "user_error"

    async def test_only_idempotent_action_is_retried_inside_an_environment(self, cpu: Cpu, rows: Rows) -> None:
        inside = {"scope": "trajectory", "retries": 1}
        once = await cpu.running(**inside, trajectory="a", environment_id=uuid4())
        twice = await cpu.running(**inside, trajectory="b", environment_id=uuid4(), idempotent=True)
        for fence in (once, twice):
            cpu.executor.finish(fence, "infra_error", reason="agent_lost")
        await rows.until_state(once.action_id, "settled")
        await rows.until_state(twice.action_id, "queued")

    async def test_report_of_a_lost_fence_is_acknowledged_without_effect(self, cpu: Cpu, rows: Rows) -> None:
        fence = await cpu.running()
        await rows.unguarded(TAKEN_AWAY, fence.action_id)
        cpu.executor.finish(fence)
        await cpu.executor.until_acknowledged(fence)
        assert await rows.state(fence.action_id) == ("queued", None, None)
        assert await rows.value("select count(*) from action_results") == 0


class TestKill:
    async def test_cancel_request_kills_a_running_action_and_settles_it_cancelled(self, cpu: Cpu, rows: Rows) -> None:
        fence = await cpu.running()
        await rows.unguarded(WISHED, fence.action_id)
        assert await cpu.executor.next_kill() == fence
        assert (await rows.until_state(fence.action_id, "settled"))["outcome"] == "cancelled"
        assert cpu.executor.killed == [fence]

    async def test_result_reported_before_the_kill_is_kept(self, cpu: Cpu, rows: Rows) -> None:
        fence = await cpu.running()
        cpu.executor.running.clear()
        await rows.unguarded(WISHED, fence.action_id)
        await cpu.executor.next_kill()
        cpu.executor.finish(fence)
        assert (await rows.until_state(fence.action_id, "settled"))["outcome"] == "ok"

    async def test_attempt_with_lost_fence_is_killed_and_frees_its_cores(self, cpu: Cpu, rows: Rows) -> None:
        fence = await cpu.running(amounts=WHOLE_NODE)
        await rows.unguarded(TAKEN_AWAY, fence.action_id)
        assert await cpu.executor.next_kill() == fence
        await cpu.peers.until(lambda _: was_freed(cpu, fence))
        assert (await cpu.running(amounts=WHOLE_NODE)).action_id != fence.action_id
        assert await rows.state(fence.action_id) == ("queued", None, None)


class TestRestart:
    async def test_restarted_manager_adopts_a_running_action_without_restarting_it(self, rows: Rows) -> None:
        executor = FakeExecutor(EPOCH)
        async with managing(rows, executor) as cpu:
            fence = await cpu.running()
        async with managing(rows, executor) as cpu:
            await cpu.offer(fence.action_id)
            executor.finish(fence)
            assert (await rows.until_state(fence.action_id, "settled"))["outcome"] == "ok"
        assert executor.started == [fence]

    async def test_adopted_action_keeps_its_allocation(self, rows: Rows) -> None:
        executor = FakeExecutor(EPOCH)
        async with managing(rows, executor) as cpu:
            await cpu.running(amounts=WHOLE_NODE)
        async with managing(rows, executor) as cpu:
            action = await cpu.granted()
            await rows.until_state(action, "queued")

    async def test_action_that_ended_during_the_restart_settles(self, rows: Rows) -> None:
        executor = FakeExecutor(EPOCH)
        async with managing(rows, executor) as cpu:
            fence = await cpu.running()
        executor.running.clear()
        executor.report_at_connect(fence, "user_error", exit_code=3)
        async with managing(rows, executor) as cpu:
            assert (await rows.until_state(fence.action_id, "settled"))["outcome"] == "user_error"
            await cpu.executor.until_acknowledged(fence)
        assert executor.started == [fence]

    async def test_running_row_that_never_started_is_started(self, rows: Rows) -> None:
        executor = FakeExecutor(EPOCH)
        async with managing(rows, executor) as cpu:
            missing = await cpu.granted(state="running", started_at=await rows.value("select now()"))
            await executor.next_start()
        executor.running.clear()
        async with managing(rows, executor):
            assert (await executor.next_start()).fence == Fence(missing, 1)

    async def test_running_attempt_without_a_row_is_killed(self, rows: Rows) -> None:
        executor = FakeExecutor(EPOCH)
        async with managing(rows, executor) as cpu:
            fence = await cpu.running()
        await rows.unguarded(TAKEN_AWAY, fence.action_id)
        async with managing(rows, executor):
            assert await executor.next_kill() == fence

    async def test_cores_of_an_adopted_action_are_not_assigned_again(self, rows: Rows) -> None:
        executor = FakeExecutor(EPOCH)
        async with managing(rows, executor) as cpu:
            first, second = await cpu.running(), await cpu.running()
            cores = executor.running[second].cores
            executor.finish(first)
            await cpu.peers.until(lambda _: was_freed(cpu, first))
        async with managing(rows, executor) as cpu:
            third = await cpu.running()
            assert not set(cores) & set(executor.running[third].cores)

    async def test_new_node_epoch_marks_old_environments_as_lost(self, rows: Rows) -> None:
        async with managing(rows) as cpu:
            environment = uuid4()
            await cpu.running(trajectory="x", scope="trajectory", environment_id=environment)
        async with managing(rows, FakeExecutor(UUID(int=8))):
            sql = "select lost_at is not null, end_reason from environments where id = $1"
            assert tuple(await rows.pool.fetchrow(sql, environment)) == (True, "node_restarted")


class TestEnvironments:
    async def idle(self, cpu: Cpu) -> UUID:
        environment = uuid4()
        fence = await cpu.running(trajectory="x", scope="trajectory", environment_id=environment)
        cpu.executor.finish(fence)
        await cpu.peers.until(lambda _: was_freed(cpu, fence))
        return environment

    async def test_deleted_environment_is_destroyed_and_frees_its_memory(self, cpu: Cpu, rows: Rows) -> None:
        environment = await self.idle(cpu)
        await rows.execute("update environments set delete_requested_at = now()")
        assert await cpu.executor.next_destroy() == environment
        await rows.until_value("deleted", "select end_reason from environments where ended_at is not null")
        await cpu.peers.until(lambda peers: ResourcesFreedNotification(fences=[]) in peers.bodies("/internal/freed"))
        await cpu.running(amounts=WHOLE_NODE)

    async def test_environment_idle_for_its_ttl_is_destroyed(self, cpu: Cpu, rows: Rows) -> None:
        environment = await self.idle(cpu)
        await rows.execute("update environments set last_used_at = now() - interval '1 day'")
        assert await cpu.executor.next_destroy() == environment
        await rows.until_value("idle", "select end_reason from environments where ended_at is not null")

    async def test_busy_environment_is_destroyed_only_after_its_action(self, cpu: Cpu, rows: Rows) -> None:
        environment = uuid4()
        fence = await cpu.running(trajectory="x", scope="trajectory", environment_id=environment)
        await rows.execute("update environments set delete_requested_at = now()")
        marker = await cpu.granted()
        await cpu.executor.next_start()
        assert (marker, cpu.executor.destroyed) == (cpu.executor.started[-1].action_id, [])
        cpu.executor.finish(fence)
        assert await cpu.executor.next_destroy() == environment

    async def test_environment_lost_by_the_executor_is_marked_as_lost(self, cpu: Cpu, rows: Rows) -> None:
        cpu.executor.lose(await self.idle(cpu), "agent_died")
        await rows.until_value("agent_died", "select end_reason from environments where lost_at is not null")

    async def test_environment_that_a_program_ended_is_not_an_infrastructure_error(self, cpu: Cpu, rows: Rows) -> None:
        """The kernel ended its first process, because a program had used up the memory."""
        environment = uuid4()
        await cpu.granted(trajectory="x", scope="trajectory", environment_id=environment)
        fence = (await cpu.executor.next_start()).fence
        cpu.executor.finish(fence, "limit_exceeded", reason="memory", environment_lost=True)
        await rows.until_value("environment_out_of_memory", "select end_reason from environments")
        later = await cpu.granted(trajectory="x", scope="trajectory", environment_id=environment)
        await rows.until_state(later, "settled")
        assert await rows.state(later) == ("settled", "limit_exceeded", "environment_out_of_memory")

    async def test_action_for_a_lost_environment_settles_without_a_new_one(self, cpu: Cpu, rows: Rows) -> None:
        await rows.environment("x", cpu.manager.node_id, lost_at=await rows.value("select now()"))
        action = await cpu.granted(trajectory="x", scope="trajectory", environment_id=uuid4(), retries=3)
        await rows.until_state(action, "settled")
        assert await rows.state(action) == ("settled", "infra_error", "environment_lost")
        assert cpu.executor.started == []


class TestLease:
    async def test_node_that_lost_its_lease_starts_no_more_actions(self, rows: Rows) -> None:
        async with managing(rows, node_ttl_s=0.5, beat_s=0.05) as cpu:
            await rows.execute("update node_beats set epoch = $1", UUID(int=99))

            async def is_fenced() -> bool:
                """Return True if the manager left a new grant unstarted."""
                action = await cpu.granted()
                with contextlib.suppress(TimeoutError):
                    cpu.executor.finish((await cpu.executor.next_start(timeout_s=0.2)).fence)
                    await rows.until_state(action, "settled")
                return (await rows.of(action))["state"] == "granted"

            await rows.until(is_fenced)
