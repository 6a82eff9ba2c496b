"""Test that `/v1/admin/consistency` finds contradictory rows, which the test writes as owner."""

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest_asyncio

from arl_gateway.admin import consistency_queries
from arl_gateway.admin.consistency import consistency_from_row
from arl_wire.admin.consistency import ConsistencyReport
from support.rows import Rows, rows_in, store_of

CAPACITY = {"cpu_milli": 2000, "memory_mib": 10_000, "disk_mib": 10_000}


@pytest_asyncio.fixture
async def rows(database: str) -> AsyncIterator[Rows]:
    async with rows_in(database) as rows:
        await rows.node(cores=2)
        yield rows


async def audit(rows: Rows) -> ConsistencyReport:
    async with store_of(rows.owner_url, "gateway") as store, store.read() as tx:
        return consistency_from_row(await consistency_queries.check_consistency(tx))


async def found(rows: Rows) -> set[tuple[str, str]]:
    return {(finding.check, finding.subject) for finding in (await audit(rows)).findings}


async def result_of(rows: Rows, action: object, *, grant_no: int = 1) -> None:
    await rows.execute("insert into action_results (id, grant_no) values ($1, $2)", action, grant_no)


class TestAllocations:
    async def test_report_without_running_actions_shows_no_allocations(self, rows: Rows) -> None:
        settled = await rows.action(state="settled", outcome="ok")
        await result_of(rows, settled)
        await rows.action()
        audited = await audit(rows)
        assert audited.actions == {"queued": 1, "settled": 1}
        assert {entry.resource: (entry.allocated, entry.capacity) for entry in audited.allocations} == {
            resource: (0, capacity) for resource, capacity in CAPACITY.items()
        }
        assert audited.findings == []

    async def test_environment_memory_counts_once_and_cores_count_per_action(self, rows: Rows) -> None:
        home = await rows.environment("t1", 1)
        await rows.action(state="running", trajectory="t1", environment_id=home)
        await rows.action(state="granted")
        await rows.action(state="granted", trajectory="t2", environment_id=uuid4())
        audited = await audit(rows)
        held = {entry.resource: entry.allocated for entry in audited.allocations}
        assert held == {"cpu_milli": 3000, "memory_mib": 300, "disk_mib": 30}
        assert [(node.attempts, node.environments) for node in audited.nodes] == [(3, 1)]
        assert await found(rows) == {("overbooked", "n cpu_milli")}

    async def test_other_resources_of_actions_inside_environments_are_counted(self, rows: Rows) -> None:
        amounts = {"cpu_milli": 1000, "memory_mib": 100, "disk_mib": 10, "npu": 1}
        for name in ("t1", "t2"):
            home = await rows.environment(name, 1)
            await rows.action(state="running", trajectory=name, environment_id=home, amounts=amounts)
        await rows.execute("update nodes set capacity = capacity || '{\"npu\": 1}'")
        assert ("overbooked", "n npu") in await found(rows)


class TestFindings:
    async def test_missing_or_mismatched_results_are_found(self, rows: Rows) -> None:
        missing = await rows.action(state="settled", outcome="user_error")
        await rows.action(state="settled", outcome="cancelled")
        other = await rows.action(state="settled", outcome="ok", grant_no=2)
        await result_of(rows, other, grant_no=1)
        early = await rows.action(state="running")
        await result_of(rows, early)
        assert await found(rows) == {
            ("settled_without_result", str(missing)),
            ("result_of_another_grant", str(other)),
            ("result_before_the_end", str(early)),
        }

    async def test_attempts_and_environments_of_another_node_epoch_are_found(self, rows: Rows) -> None:
        old = await rows.action(state="running", node_epoch=uuid4())
        nowhere = await rows.action(state="granted", node_id=77)
        home = await rows.environment("t1", 1, node_epoch=uuid4())
        assert await found(rows) == {
            ("attempt_of_another_epoch", str(old)),
            ("attempt_without_node", str(nowhere)),
            ("environment_of_another_epoch", str(home)),
        }

    async def test_shared_and_lost_environments_with_attempts_are_found(self, rows: Rows) -> None:
        shared = await rows.environment("t1", 1)
        for _ in range(2):
            await rows.action(state="running", trajectory="t1", environment_id=shared, amounts={"cpu_milli": 100})
        gone = await rows.environment("t2", 1)
        await rows.execute("update environments set lost_at = now() where id = $1", gone)
        inside = await rows.action(state="granted", trajectory="t2", environment_id=gone)
        assert await found(rows) == {
            ("shared_environment", str(shared)),
            ("attempt_in_a_gone_environment", str(inside)),
        }
