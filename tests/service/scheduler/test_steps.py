"""Test that the leader projects training steps, and lets the actions of their last trajectories go first."""

import json
from collections.abc import AsyncIterator
from typing import Any, cast
from uuid import UUID

import pytest
import pytest_asyncio

from arl_core.domain.model import Fence
from arl_core.policies.spar import SparPolicy
from arl_core.steps.projection import BoostRule
from arl_scheduler.inquiry.wait_explainer import WaitExplainer
from arl_scheduler.leader.scheduling_loop import SchedulingLoop
from arl_scheduler.queries.estimate_queries import RunDuration
from arl_tangram.cli.actions.explain import wait_sentences
from arl_wire.internal.node import CriticalChangeBatchRequest, CriticalChangePayload, GrantBatchRequest
from arl_wire.internal.scheduler import ExplainRequest
from support.peers import RecordingPeers
from support.rows import Rows, rows_in
from support.scheduler import leading

SETTLED = "update actions set state = 'settled', outcome = 'ok', run_us = 0, settled_at = now() where id = $1"
TRAJECTORY = "select to_json(t)::text from step_trajectories as t where trajectory = $1 and step = $2"
POLICY = SparPolicy()


@pytest_asyncio.fixture
async def rows(database: str) -> AsyncIterator[Rows]:
    async with rows_in(database) as rows:
        await rows.node(cores=1)
        yield rows


async def a_turn(rows: Rows, trajectory: str, *, step: int = 1, **hints: Any) -> UUID:
    return await rows.action(trajectory=trajectory, step=step, hints=hints or None)


async def granted(rows: Rows, action: UUID) -> Fence:
    await rows.until_state(action, "granted")
    return await rows.fence(action)


async def settle(rows: Rows, leader: SchedulingLoop, fence: Fence, *, run_s: float = 1.0) -> None:
    """Settle an attempt and notify the leader, as a manager does."""
    await rows.unguarded(SETTLED, fence.action_id)
    run = RunDuration(run_us=round(run_s * 1e6), cpu_us=round(run_s * 1e5), wall_us=round(run_s * 2e6))
    leader.inbox.freed([fence], runs={fence: run})


async def saved(rows: Rows, trajectory: str, *, step: int = 1, turns: int) -> dict[str, Any]:
    """Return the saved row of a trajectory once it has this many turns."""
    found: dict[str, Any] = {}

    async def has_turns() -> bool:
        nonlocal found
        found = json.loads(await rows.value(TRAJECTORY, trajectory, step) or "{}")
        return bool(found.get("turns") == turns)

    await rows.until(has_turns)
    return found


async def ruled(rows: Rows, trajectory: str, rule: str, *, step: int = 1) -> None:
    sql = "select boost from step_trajectories where trajectory = $1 and step = $2"
    await rows.until_value(rule, sql, trajectory, step)


async def test_action_of_the_last_trajectory_goes_past_the_queue(rows: Rows) -> None:
    peers = RecordingPeers()
    async with leading(rows, peers, POLICY) as leader:
        blocker = await granted(rows, await rows.action())
        early = await a_turn(rows, "early", expected_turns=2)
        late = await a_turn(rows, "late", expected_turns=50)
        await ruled(rows, "late", "critical_trajectory")
        answer = await WaitExplainer(leader, POLICY).explain(ExplainRequest(id=late))
        assert answer.wait.trajectory is not None
        assert answer.wait.trajectory.rule is BoostRule.CRITICAL_TRAJECTORY
        assert answer.wait.trajectory.projected_rest_s == pytest.approx(50.0)
        assert any("go first" in sentence for sentence in wait_sentences(answer.wait))
        await settle(rows, leader, blocker)
        fence = await granted(rows, late)
        assert (await rows.of(late))["is_critical"]
        assert (await rows.of(early))["state"] == "queued"
        bodies = cast(list[GrantBatchRequest], peers.bodies("/internal/grants"))
        sent = {grant.id: grant.is_critical for body in bodies for grant in body.grants}
        assert sent == {blocker.action_id: False, late: True}
        await settle(rows, leader, fence)
        await granted(rows, early)
        assert not (await rows.of(early))["is_critical"]


async def test_node_learns_that_the_trajectory_of_a_running_action_became_critical(rows: Rows) -> None:
    peers = RecordingPeers()
    async with leading(rows, peers, POLICY):
        sharing = {"guarantee_milli": 100, "limit_milli": None, "is_declared": False}
        running = await rows.action(trajectory="late", step=1, cpu_sharing=sharing)
        fence = await granted(rows, running)
        await ruled(rows, "late", "no_prediction")
        assert peers.bodies("/internal/critical") == []
        await a_turn(rows, "late", expected_turns=50)
        await ruled(rows, "late", "critical_trajectory")
        (body,) = cast(list[CriticalChangeBatchRequest], peers.bodies("/internal/critical"))
        change = CriticalChangePayload(id=fence.action_id, grant_no=fence.grant_no, is_critical=True)
        assert body.changes == [change]


async def test_leader_without_step_awareness_keeps_the_order_of_arrival(rows: Rows) -> None:
    async with leading(rows, policy=POLICY, step_aware=False) as leader:
        blocker = await granted(rows, await rows.action())
        early = await a_turn(rows, "early", expected_turns=2)
        await a_turn(rows, "late", expected_turns=50)
        await ruled(rows, "late", "disabled")
        await settle(rows, leader, blocker)
        await granted(rows, early)


async def test_times_of_a_trajectory_survive_a_change_of_leader(rows: Rows) -> None:
    async with leading(rows, policy=POLICY) as leader:
        fence = await granted(rows, await a_turn(rows, "a", group="g", progress=0.5))
        await settle(rows, leader, fence, run_s=0.001)
        before = await saved(rows, "a", turns=1)
        assert (before["run_s"], before["core_wait_s"], before["ended_at"]) == (0.001, 0.001, None)
        assert (before["trajectory_group"], before["progress"], before["waits"]["cpu"] >= 0.001) == ("g", 0.5, True)
    async with leading(rows, policy=POLICY) as leader:
        fence = await granted(rows, await a_turn(rows, "a"))
        await settle(rows, leader, fence, run_s=0.002)
        after = await saved(rows, "a", turns=2)
        assert (after["run_s"], after["progress"], after["started_at"]) == (0.003, 0.5, before["started_at"])
        assert after["think_s"] > 0


async def test_queued_action_of_a_critical_trajectory_goes_first_under_the_next_leader(rows: Rows) -> None:
    async with leading(rows, policy=POLICY):
        blocker = await granted(rows, await rows.action())
        early = await a_turn(rows, "early", expected_turns=2)
        late = await a_turn(rows, "late", expected_turns=50)
        await ruled(rows, "late", "critical_trajectory")
    async with leading(rows, policy=POLICY) as leader:
        await settle(rows, leader, blocker)
        await granted(rows, late)
        assert (await rows.of(early))["state"] == "queued"


async def test_lengths_of_earlier_steps_predict_the_trajectories_of_a_prompt(rows: Rows) -> None:
    async with leading(rows, policy=POLICY) as leader:
        for prompt, run_s in (("short", 1.0), ("long", 60.0)):
            fence = await granted(rows, await a_turn(rows, f"{prompt}-1", prompt=prompt))
            await settle(rows, leader, fence, run_s=run_s)
            await saved(rows, f"{prompt}-1", turns=1)
        await rows.execute("insert into training_steps (queue_id, step) values ($1, 1)", rows.queue)
        await rows.until_value(2, "select count(*) from prompt_passes")
        await ruled(rows, "long-1", "trajectory_ended")
    async with leading(rows, policy=POLICY) as leader:
        blocker = await granted(rows, await rows.action())
        await a_turn(rows, "short-2", step=2, prompt="short")
        late = await a_turn(rows, "long-2", step=2, prompt="long")
        await a_turn(rows, "unknown", step=2)
        await ruled(rows, "long-2", "critical_trajectory", step=2)
        await ruled(rows, "unknown", "no_prediction", step=2)
        await settle(rows, leader, blocker)
        await granted(rows, late)


async def test_lengths_of_the_same_step_predict_nothing(rows: Rows) -> None:
    async with leading(rows, policy=POLICY) as leader:
        fence = await granted(rows, await a_turn(rows, "first", prompt="p"))
        await settle(rows, leader, fence)
        leader.steps.tracker.end_trajectory(rows.queue, "first", at=1e12)
        await a_turn(rows, "second", prompt="p")
        await ruled(rows, "second", "no_prediction")
