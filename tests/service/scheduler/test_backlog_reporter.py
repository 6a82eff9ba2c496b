"""Test the backlog by kind of node, as the leader reports it."""

import pytest

from arl_scheduler.inquiry.backlog_reporter import BacklogReporter
from arl_scheduler.leader.scheduling_loop import SchedulingLoop
from arl_wire.errors import Unavailable
from arl_wire.internal.scheduler import BacklogRequest
from support.conditions import eventually
from support.rows import rows_in
from support.scheduler import leading


async def until_known(leader: SchedulingLoop, waiting: int) -> None:
    await eventually(lambda: (view := leader.view()) is not None and view[0].queued_count == waiting)


async def test_backlog_has_waiting_and_running_actions_by_kind(database: str) -> None:
    async with rows_in(database) as rows, leading(rows) as leader:
        await rows.node(cores=1)
        for _ in range(3):
            await rows.action(demand={"cpu_milli": 1000})
        await until_known(leader, 2)
        found = {load.kind: load for load in (await BacklogReporter(leader).report(BacklogRequest())).items}
        assert set(found) == {"api", "cpu", "gpu"}
        cpu = found["cpu"]
        assert (cpu.waiting, cpu.running, cpu.busy_cores, cpu.waiting_cores) == (2, 1, 1.0, 2.0)
        assert (cpu.unknown_cores, cpu.waiting_core_s) == (2.0, 0.0)
        assert cpu.oldest_s is not None


async def test_standby_reports_no_backlog(database: str) -> None:
    async with rows_in(database) as rows, leading(rows) as leader:
        await until_known(leader, 0)
        leader.election.mark_lost()
        with pytest.raises(Unavailable):
            await BacklogReporter(leader).report(BacklogRequest())
