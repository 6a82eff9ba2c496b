"""Test policy resizes from leader to executor with real rows, a real manager and a fake executor."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import pytest
import pytest_asyncio
from pydantic import BaseModel

from arl_core.capacity.snapshot import CellSnapshot
from arl_core.domain.model import Fence, ResizeDecision, SchedulingPlan, action_resources, environment_resources
from arl_core.policies.policy import FirstComeFirstServed
from arl_cpu.contract.executor import AttemptResize as Ordered
from arl_scheduler.leader.scheduling_loop import SchedulingLoop
from arl_wire.errors import Unavailable
from arl_wire.internal.node import ResizeBatchRequest, ResizeBatchResponse, ResizeResult
from support.cpu import Cpu, managing
from support.peers import RecordingPeers
from support.rows import AMOUNTS, Rows, rows_in
from support.scheduler import leading

RANGE = {
    "resource": "cpu_milli",
    "min": AMOUNTS["cpu_milli"],
    "max": 2000,
    "step": 1000,
    "elasticity": {"model": "none"},
    "resizable": "any",
}


@dataclass
class AsToldTo:
    """A policy that starts queued actions at their minimum and resizes running ones to `wanted`."""

    wanted: dict[UUID, int] = field(default_factory=dict)
    decisions: int = 0
    has_pods: bool = False

    def plan(self, snapshot: CellSnapshot) -> SchedulingPlan:
        resizes = []
        for action_id, cpu_milli in self.wanted.items():
            for each in snapshot.running.on_node(1).values():
                is_it = each.fence.action_id == action_id and each.started is not None and each.resizing_to is None
                if is_it and each.resources["cpu_milli"] != cpu_milli:
                    resizes.append(
                        ResizeDecision(fence=each.fence, resources={**each.resources, "cpu_milli": cpu_milli})
                    )
        self.decisions += len(resizes)
        return SchedulingPlan(grants=FirstComeFirstServed().plan(snapshot).grants, resizes=tuple(resizes))

    def environment_allocation(self, resources: dict[str, int]) -> dict[str, int]:
        return environment_resources(resources)

    def action_allocation(self, resources: dict[str, int], *, in_environment: bool, in_pod: bool) -> dict[str, int]:
        return action_resources(resources) if in_environment else dict(resources)


class Line(RecordingPeers):
    """A connection to the manager that can fail before or after the manager handles the request."""

    def __init__(self, cpu: Cpu) -> None:
        super().__init__()
        self.cpu = cpu
        self.breaks: str | None = None
        self.says: list[ResizeResult] = []
        """Responses that replace the manager's own."""
        self.before_saying: Callable[[], None] = lambda: None
        self.broke = asyncio.Event()

    async def call(self, url: str, body: BaseModel, *, audience: str) -> bytes:
        assert url.endswith("/internal/resizes")
        assert isinstance(body, ResizeBatchRequest)
        if self.says:
            self.before_saying()
            return ResizeBatchResponse(answers=[self.says.pop()]).model_dump_json().encode()
        if self.breaks != "before":
            answers = await self.cpu.manager.resize(body.resizes, epoch=body.node_epoch)
        if self.breaks is not None:
            self.broke.set()
            raise Unavailable("it broke")
        return ResizeBatchResponse(answers=answers).model_dump_json().encode()


@dataclass
class Led:
    rows: Rows
    cpu: Cpu
    line: Line
    policy: AsToldTo
    rounds: SchedulingLoop

    async def running(self, cpu_milli: int = 1000) -> Fence:
        """Start a resizable action and return its fence once it runs with `cpu_milli`."""
        action = await self.rows.action(elastic=RANGE)
        fence = (await self.cpu.executor.next_start()).fence
        if cpu_milli != 1000:
            await self.resized(fence, cpu_milli)
        assert fence.action_id == action
        return fence

    async def resized(self, fence: Fence, cpu_milli: int) -> None:
        self.policy.wanted[fence.action_id] = cpu_milli
        await self.until(fence, cpu_milli)

    async def until(self, fence: Fence, cpu_milli: int) -> None:
        """Wait until the row and the executor both have `cpu_milli`."""

        async def agrees() -> bool:
            return await self.row(fence) == cpu_milli == self.cpu.executor.running[fence].cpu_milli

        await self.rows.until(agrees)

    async def row(self, fence: Fence) -> int:
        return int(json.loads((await self.rows.of(fence.action_id))["amounts"])["cpu_milli"])

    async def seq(self, fence: Fence) -> int:
        return int((await self.rows.of(fence.action_id))["amounts_seq"])


@pytest_asyncio.fixture
async def rows(database: str) -> AsyncIterator[Rows]:
    async with rows_in(database) as rows:
        yield rows


@pytest_asyncio.fixture
async def cpu(rows: Rows) -> AsyncIterator[Cpu]:
    async with managing(rows, node_ttl_s=60.0) as cpu:
        yield cpu


@pytest_asyncio.fixture
async def led(rows: Rows, cpu: Cpu) -> AsyncIterator[Led]:
    line, policy = Line(cpu), AsToldTo()
    async with leading(rows, line, policy, node_ttl_s=60.0) as rounds:
        yield Led(rows, cpu, line, policy, rounds)


async def test_growth_is_written_to_the_row_and_the_node(led: Led) -> None:
    fence = await led.running()
    await led.resized(fence, 2000)
    assert await led.seq(fence) == 1
    assert len(led.cpu.executor.running[fence].cores) == 2


async def test_cores_of_a_shrink_are_granted_after_the_node_confirms(led: Led) -> None:
    fence = await led.running(2000)
    asked, confirm = asyncio.Event(), asyncio.Event()

    async def hold(_: Sequence[Ordered]) -> None:
        asked.set()
        await confirm.wait()

    led.cpu.executor.before_resize = hold
    waiting = await led.rows.action()
    led.policy.wanted[fence.action_id] = 1000
    await asyncio.wait_for(asked.wait(), 10)
    seen = await led.rows.action(cancel_requested_at=await led.rows.value("select now()"))
    await led.rows.until_state(seen, "settled")  # by a poll, after which there was a round
    assert (await led.row(fence), (await led.rows.of(waiting))["state"]) == (2000, "queued")
    confirm.set()
    await led.rows.until_state(waiting, "running")
    await led.until(fence, 1000)
    started = led.cpu.executor.running
    cores = [core for spec in started.values() for core in spec.cores]
    assert len(cores) == len(set(cores)) == 2


async def test_action_has_at_most_one_resize_in_flight(led: Led) -> None:
    fence = await led.running(2000)
    asked, confirm = asyncio.Event(), asyncio.Event()

    async def hold(_: Sequence[Ordered]) -> None:
        asked.set()
        await confirm.wait()

    led.cpu.executor.before_resize = hold
    decisions = led.policy.decisions
    led.policy.wanted[fence.action_id] = 1000
    await asyncio.wait_for(asked.wait(), 10)
    seen = await led.rows.action(cancel_requested_at=await led.rows.value("select now()"))
    await led.rows.until_state(seen, "settled")
    assert led.policy.decisions == decisions + 1
    confirm.set()
    await led.until(fence, 1000)


@pytest.mark.parametrize("breaks", ["before", "after"])
@pytest.mark.parametrize(("had", "wanted"), [(1000, 2000), (2000, 1000)])
async def test_resize_with_a_lost_response_is_retried(led: Led, breaks: str, had: int, wanted: int) -> None:
    fence = await led.running(had)
    led.line.breaks = breaks
    led.policy.wanted[fence.action_id] = wanted
    await asyncio.wait_for(led.line.broke.wait(), 10)
    led.line.breaks = None
    await led.until(fence, wanted)


async def test_unresponsive_node_gets_one_resize_request_per_poll(led: Led) -> None:
    fence = await led.running()
    led.line.breaks = "before"
    decisions = led.policy.decisions
    led.policy.wanted[fence.action_id] = 2000
    await asyncio.wait_for(led.line.broke.wait(), 10)
    seen = await led.rows.action(cancel_requested_at=await led.rows.value("select now()"))
    await led.rows.until_state(seen, "settled")
    assert led.policy.decisions == decisions + 1


async def test_growth_refused_by_the_node_is_undone(led: Led) -> None:
    fence = await led.running()
    full = ResizeResult(id=fence.action_id, grant_no=1, status="full", cpu_milli=1000, amounts_seq=0, free_cpu_milli=0)
    led.line.says.append(full)
    led.line.before_saying = led.policy.wanted.clear
    led.policy.wanted[fence.action_id] = 2000
    await led.rows.until_value(2, "select amounts_seq from actions where id = $1", fence.action_id)
    await led.until(fence, 1000)


async def test_stale_sequence_number_is_replaced_by_a_higher_one(led: Led) -> None:
    """An earlier leader sent a resize that it did not write to the row."""
    fence = await led.running(2000)
    body = ResizeBatchRequest.model_validate(
        {
            "node_epoch": led.cpu.manager.epoch,
            "resizes": [{"id": fence.action_id, "grant_no": 1, "cpu_milli": 1000, "amounts_seq": 7}],
        }
    )
    await led.cpu.manager.resize(body.resizes, epoch=body.node_epoch)
    led.policy.wanted[fence.action_id] = 1500
    await led.until(fence, 1500)
    assert await led.seq(fence) == 8


async def test_new_leader_learns_a_shrink_its_predecessor_did_not_write(rows: Rows, cpu: Cpu) -> None:
    line, policy = Line(cpu), AsToldTo()
    async with leading(rows, line, policy, node_ttl_s=60.0) as rounds:
        led = Led(rows, cpu, line, policy, rounds)
        fence = await led.running(2000)
        line.breaks = "after"
        policy.wanted[fence.action_id] = 1000
        await asyncio.wait_for(line.broke.wait(), 10)
    assert (await led.row(fence), cpu.executor.running[fence].cpu_milli) == (2000, 1000)
    async with leading(rows, Line(cpu), AsToldTo(), node_ttl_s=60.0):
        await led.until(fence, 1000)
        await rows.until_state(await rows.action(), "running")


async def test_ended_action_frees_its_last_allocation(led: Led) -> None:
    fence = await led.running(2000)
    led.cpu.executor.finish(fence)
    await led.rows.until_state(fence.action_id, "settled")
    others = [await led.rows.action() for _ in range(2)]
    for other in others:
        await led.rows.until_state(other, "running")


async def test_resized_run_is_learned_as_not_steady(led: Led) -> None:
    fence = await led.running(2000)
    led.cpu.executor.finish(fence)
    await led.rows.until_value(1, "select count(*) from class_estimates")
    ((_, *_, steady),) = json.loads(await led.rows.value("select runs from class_estimates"))
    assert not steady
