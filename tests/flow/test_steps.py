"""Test training steps through the whole system: hints, reports and the end of a step, with a simulated node."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from arl_tangram import AsyncTangram, NotFound, StepReport, ValidationFailed, exec_action
from arl_tangram.cli.steps import report_lines
from support.conditions import eventually
from support.postgres import Databases
from support.system import API_KEY, System, running_system

TASK = "steps"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    policy = {"scheduler": {"TANGRAM_POLICY": "spar_m"}}
    async with running_system(owner_url, cores=2, overrides=policy) as system:
        yield system
    await databases.drop(owner_url)


@pytest_asyncio.fixture
async def client(system: System) -> AsyncIterator[AsyncTangram]:
    async with AsyncTangram(system.url, API_KEY) as client:
        yield client


async def report_of(client: AsyncTangram, step: int, *, turns: int) -> StepReport:
    """Return the report once the trajectories have this many turns in all."""
    found: StepReport | None = None

    async def has_turns() -> bool:
        nonlocal found
        try:
            found = await client.get_step(TASK, step)
        except NotFound:
            return False
        return sum(each.turns for each in found.trajectories) == turns

    await eventually(has_turns)
    assert found is not None
    return found


async def test_report_shows_open_and_ended_trajectories_and_the_projected_end(client: AsyncTangram) -> None:
    await client.run(task=TASK, step=1, trajectory="a", expected_turns=3, argv=["true"])
    await client.pause_queue(TASK)
    waiting = await client.submit(task=TASK, step=1, trajectory="b", expected_turns=40, argv=["true"])
    await client.resume_queue(TASK)
    await client.wait([waiting.id], timeout_s=30)
    report = await report_of(client, 1, turns=2)
    assert (report.open, report.ended, report.unpredicted, report.ended_at) == (2, 0, 0, None)
    assert report.slowest is not None
    assert (report.slowest.trajectory, report.slowest.expected_turns) == ("b", 40)
    assert report.projected_end_at == report.slowest.projected_end_at
    assert [each.resource for each in report.savings] == ["cpu"]
    assert report.savings[0].saved_s == pytest.approx(report.savings[0].waited_s / 3, abs=1e-5)
    assert any("Projected end" in line for line in report_lines(report))
    await client.end_trajectory(TASK, "a")
    await eventually(lambda: has_ended(client, 1, 1))


async def test_ended_step_has_no_open_trajectory(client: AsyncTangram) -> None:
    await client.run(task=TASK, step=2, trajectory="c", argv=["true"])
    await report_of(client, 2, turns=1)
    await client.end_step(TASK, 2)
    await eventually(lambda: has_ended(client, 2, 1))
    report = await client.get_step(TASK, 2)
    assert (report.open, report.projected_end_at) == (0, None)
    assert report.ended_at is not None


async def has_ended(client: AsyncTangram, step: int, count: int) -> bool:
    return (await client.get_step(TASK, step)).ended == count


async def test_unknown_step_and_task_are_not_found(client: AsyncTangram) -> None:
    await client.run(task=TASK, argv=["true"])
    for task, step in ((TASK, 99), ("never", 1)):
        with pytest.raises(NotFound):
            await client.get_step(task, step)
    with pytest.raises(NotFound):
        await client.end_step("never", 1)


async def test_hint_without_a_trajectory_is_refused_with_the_name_of_the_field(client: AsyncTangram) -> None:
    with pytest.raises(ValidationFailed) as caught:
        exec_action(task=TASK, step=1, argv=["true"], expected_turns=3)
    assert [error.field for error in caught.value.errors] == ["expected_turns"]
