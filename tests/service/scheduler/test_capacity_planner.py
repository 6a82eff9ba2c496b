"""Test capacity planning: the leader simulates on a copy between its rounds."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from arl_core.capacity.snapshot import CellSnapshot
from arl_core.domain.model import Fence, ResizeDecision, SchedulingPlan
from arl_core.policies.spar import SparPolicy
from arl_core.policies.static_pods import StaticPods
from arl_scheduler.inquiry.capacity_planner import MAX_SIMULATED, CapacityPlanner
from arl_scheduler.leader.scheduling_loop import SchedulingLoop
from arl_wire.admin.capacity import CapacityPlanQuery
from arl_wire.errors import Conflict, Unavailable
from arl_wire.internal.scheduler import CapacityPlanRequest, GangMembership
from support.builders import a_queued_row, numbered
from support.conditions import eventually
from support.rows import Rows, rows_in
from support.scheduler import leading


@dataclass(frozen=True, slots=True)
class Endless(SparPolicy):
    """A policy whose simulation never ends."""

    def plan(self, snapshot: CellSnapshot) -> SchedulingPlan:
        return SchedulingPlan(resizes=(ResizeDecision(fence=Fence(numbered(1), 1), resources={"cpu_milli": 1000}),))


def asked(*, without: Sequence[int] = (), **question: Any) -> CapacityPlanRequest:
    return CapacityPlanRequest(
        question=CapacityPlanQuery(exclude_node=["n"] * len(without), **question), without=list(without)
    )


async def until_known(leader: SchedulingLoop, waiting: int) -> None:
    await eventually(lambda: (view := leader.view()) is not None and view[0].queued_count == waiting)


async def is_granted(rows: Rows, action: object) -> bool:
    return bool(await rows.value("select state = 'granted' from actions where id = $1", action))


async def test_rounds_continue_while_a_plan_is_computed(database: str) -> None:
    async with rows_in(database) as rows, leading(rows) as leader:
        await rows.node(cores=2)
        await until_known(leader, 0)
        planning = CapacityPlanner(leader, Endless(), work_s=60)
        looking = asyncio.create_task(planning.plan(asked()))
        try:
            first, second = await rows.action(), await rows.action()
            await eventually(lambda: is_granted(rows, first))
            await eventually(lambda: is_granted(rows, second))
            assert not looking.done()
            with pytest.raises(Unavailable, match="another capacity plan"):
                await planning.plan(asked())
        finally:
            looking.cancel()


async def test_plan_that_exceeds_its_time_is_reported_as_incomplete(database: str) -> None:
    async with rows_in(database) as rows, leading(rows) as leader:
        await until_known(leader, 0)
        found = await CapacityPlanner(leader, Endless(), work_s=0.01).plan(asked())
        assert (found.current.complete, found.hypothetical) == (False, None)


async def test_plan_uses_the_leaders_nodes_environments_and_paused_queues(database: str) -> None:
    async with rows_in(database) as rows, leading(rows) as leader:
        node = await rows.node(cores=1, memory_mib=1000)
        running = await rows.action(scope="trajectory", trajectory="x", environment_id=numbered(5))
        await eventually(lambda: is_granted(rows, running))
        for _ in range(2):
            await rows.action(scope="trajectory", trajectory="x")
        await rows.action(demand={"cpu_milli": 2000})
        halted = await rows.queue_of("halted")
        await rows.execute("update queues set paused_at = now() where id = $1", halted)
        await rows.action(demand={"cpu_milli": 1000}, queue_id=halted)  # the poll that reads it also reads the pause
        await until_known(leader, 4)
        planning = CapacityPlanner(leader, SparPolicy())
        found = (await planning.plan(asked(cores="4"))).hypothetical
        assert found is not None
        assert (found.nodes, found.cpu_milli, found.queued, found.simulated) == (1, 4000, 4, 3), (
            "what is paused waits and does not start"
        )
        closed = (await planning.plan(asked(without=[node]))).hypothetical
        assert closed is not None
        assert (closed.nodes, closed.started) == (0, 2), "what lives there goes on"


async def test_plan_says_which_actions_of_paused_tasks_and_tasks_at_their_quota_wait(database: str) -> None:
    async with rows_in(database) as rows, leading(rows) as leader:
        await rows.node(cores=8, memory_mib=10_000)
        for task, quota in (("halted", None), ("limited", 1), ("nothing", 0)):
            queue = await rows.queue_of(task)
            if quota is not None:
                sql = "update queues set quota = $2 where id = $1"
                await rows.execute(sql, queue, json.dumps({"running": quota}))
            else:
                await rows.execute("update queues set paused_at = now() where id = $1", queue)
        queues = {row["task"]: row["id"] for row in await rows.pool.fetch("select id, task from queues")}
        for task in ("halted", "limited", "nothing"):
            for _ in range(3):
                await rows.action(queue_id=queues[task])
        await until_known(leader, 8)
        found = (await CapacityPlanner(leader, SparPolicy()).plan(asked())).current
        assert (found.queued, found.simulated, found.started) == (8, 5, 2), "the quota of 1 runs one after another"
        assert (found.complete, found.drain_s) == (False, None)
        assert {each.reason: each.actions for each in found.unstarted} == {"queue_paused": 3, "task_at_quota": 3}
        await rows.execute("update queues set paused_at = null, quota = null where task <> 'limited'")
        await until_known(leader, 2)
        found = (await CapacityPlanner(leader, SparPolicy()).plan(asked())).current
        assert (found.queued, found.started, found.complete, found.unstarted) == (2, 2, True, [])
        assert found.drain_s is not None
        assert found.drain_s > 0, "the task at its quota waits for its running action"


async def test_plan_simulates_a_bounded_number_of_queued_actions(database: str) -> None:
    async with rows_in(database) as rows, leading(rows) as leader:
        await until_known(leader, 0)
        view = leader.view()
        assert view is not None
        view[0].admit([a_queued_row(number) for number in range(1, MAX_SIMULATED + 11)])
        found = (await CapacityPlanner(leader, SparPolicy()).plan(asked())).current
        assert (found.queued, found.simulated) == (MAX_SIMULATED + 10, MAX_SIMULATED)
        assert found.unstarted[-1].model_dump() == {"reason": "not_simulated", "actions": 10}
        assert not found.complete


async def test_plan_never_simulates_a_partial_gang(database: str) -> None:
    async with rows_in(database) as rows, leading(rows) as leader:
        await until_known(leader, 0)
        view = leader.view()
        assert view is not None
        gangs = [GangMembership(id=numbered(number), size=MAX_SIMULATED * 2 // 5) for number in range(1, 4)]
        for number, gang in enumerate(gangs):
            view[0].admit([a_queued_row(number * MAX_SIMULATED + at, gang=gang) for at in range(1, gang.size + 1)])
        found = (await CapacityPlanner(leader, SparPolicy()).plan(asked())).current
        assert (found.queued, found.simulated) == (MAX_SIMULATED * 6 // 5, MAX_SIMULATED * 4 // 5)


async def test_plan_is_refused_under_the_static_pods_policy(database: str) -> None:
    async with rows_in(database) as rows, leading(rows) as leader:
        with pytest.raises(Conflict):
            await CapacityPlanner(leader, StaticPods(1000)).plan(asked())
