"""Test with random event orders that resizes never allocate a core twice."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from arl_core.capacity.ledger import ResourceLedger
from arl_core.domain.elasticity import AmdahlScaling
from arl_core.domain.model import (
    ActionClass,
    ElasticResource,
    Fence,
    ResizeDecision,
    ResizeSupport,
    ResourceDemand,
    ResourceShape,
)
from arl_core.durations.curves import CurveCache
from arl_core.policies.policy import FirstComeFirstServed
from arl_scheduler.index.allocations import Allocation, AllocationTable
from arl_scheduler.leader.notification_inbox import NotificationInbox
from arl_scheduler.leader.resize_coordinator import ResizeCoordinator
from arl_scheduler.queries.poll_result import ResizeUpdate
from arl_wire.errors import Unavailable
from arl_wire.internal.node import ResizeBatchRequest, ResizeBatchResponse, ResizePayload, ResizeResult
from support.builders import a_node_row, numbered

CAPACITY = 6000
CLS = ActionClass(
    key=1,
    kind="exec",
    shape=ResourceShape.DIVISIBLE,
    demand=ResourceDemand(
        {"cpu_milli": 1000},
        ElasticResource("cpu_milli", (1000, 2000, 3000, 4000), AmdahlScaling(0.9), resizable=ResizeSupport.ANY),
    ),
)
FENCES = [Fence(numbered(number), 1) for number in (1, 2, 3)]
NODES = {1: a_node_row()}
Has = dict[Fence, tuple[int, int]]
"""Milli-cores of each attempt and the sequence number of the resize that set them."""


@dataclass
class Node:
    """A model of the manager; `test_resizes.py` checks the real one for the same behavior."""

    has: Has = field(default_factory=lambda: dict.fromkeys(FENCES, (1000, 0)))

    @property
    def free(self) -> int:
        return CAPACITY - sum(milli for milli, _ in self.has.values())

    def resize(self, body: ResizePayload) -> ResizeResult:
        fence = Fence(body.id, body.grant_no)
        milli, seq = self.has[fence]
        status = "done" if (milli, seq) == (body.cpu_milli, body.amounts_seq) else "stale"
        if body.amounts_seq > seq:
            status = "full" if body.cpu_milli - milli > self.free else "done"
            if status == "done":
                self.has[fence] = milli, seq = body.cpu_milli, body.amounts_seq
        said = {"status": status, "cpu_milli": self.has[fence][0], "amounts_seq": self.has[fence][1]}
        return ResizeResult.model_validate({"id": body.id, "grant_no": 1, "free_cpu_milli": self.free, **said})

    def follow(self, rows: Has) -> None:
        for fence, (milli, seq) in rows.items():
            self.resize(ResizePayload(id=fence.action_id, grant_no=1, cpu_milli=milli, amounts_seq=seq))


@dataclass
class Line:
    """Requests in flight to the node and responses in flight to the leader."""

    requests: list[tuple[ResizeBatchRequest, asyncio.Future[bytes]]] = field(default_factory=list)
    answers: list[tuple[bytes, asyncio.Future[bytes]]] = field(default_factory=list)

    async def call(self, url: str, body: BaseModel, *, audience: str) -> bytes:
        assert isinstance(body, ResizeBatchRequest)
        heard = asyncio.get_running_loop().create_future()
        self.requests.append((body, heard))
        return bytes(await heard)


class World:
    def __init__(self) -> None:
        self.node, self.line = Node(), Line()
        self.rows: Has = dict(self.node.has)
        self.take_over()

    def take_over(self) -> None:
        """Start a new leader from the rows. Requests of its predecessor may still arrive."""
        self.ledger, self.mailbox = ResourceLedger(), NotificationInbox()
        self.ledger.set_capacity(1, {"cpu_milli": CAPACITY})
        self.holds = AllocationTable(FirstComeFirstServed(), self.ledger, CurveCache())
        for fence, (milli, seq) in self.rows.items():
            self.holds.add(Allocation(fence, CLS, 1, {"cpu_milli": milli}, None, 1, 0.0, 0.0, resize_seq=seq))
        self.resizing = ResizeCoordinator(self.line, self.mailbox)  # type: ignore[arg-type]
        self.resizing.begin(self.holds)
        self.resizing.retry_unconfirmed(self.holds, NODES)

    def decide(self, number: int) -> None:
        """Resize one action as a policy would, if enough cores are available."""
        fence, milli = FENCES[number % len(FENCES)], 1000 * (1 + number // len(FENCES) % 4)
        resizes = [ResizeDecision(fence=fence, resources={"cpu_milli": milli})]
        growths, shrinks = self.resizing.growths(self.holds, resizes), self.resizing.shrinks(self.holds, resizes)
        if growths and milli - self.rows[fence][0] > self.ledger.available(1)["cpu_milli"]:
            return
        self.write(growths, confirmed=False)
        self.resizing.send(self.holds, NODES, [*shrinks, *growths])

    def turn(self, _: int) -> None:
        mail = self.mailbox.drain()
        self.resizing.mark_unconfirmed(mail.unanswered)
        written, asked = self.resizing.process_responses(self.holds, mail.resized)
        self.write(written, confirmed=True)
        self.resizing.send(self.holds, NODES, asked)

    def write(self, changes: list[ResizeUpdate], *, confirmed: bool) -> None:
        """Write the resizes to the rows as `repository.RESIZE` does."""
        for change in changes:
            seq = self.rows[change.fence][1]
            if seq < change.seq or (confirmed and seq == change.seq):
                self.rows[change.fence] = (change.resources["cpu_milli"], change.seq)
                self.holds.apply_resize(change.fence, change.resources, seq=change.seq, now=1.0)

    def look(self, _: int) -> None:
        self.resizing.retry_unconfirmed(self.holds, NODES)

    def arrive(self, number: int) -> None:
        if self.line.requests:
            batch, heard = self.line.requests.pop(number % len(self.line.requests))
            answers = [self.node.resize(body) for body in batch.resizes]
            self.line.answers.append((ResizeBatchResponse(answers=answers).model_dump_json().encode(), heard))

    def return_(self, number: int) -> None:
        if self.line.answers:
            content, heard = self.line.answers.pop(number % len(self.line.answers))
            heard.set_result(content)

    def lose_request(self, number: int) -> None:
        if self.line.requests:
            self.line.requests.pop(number % len(self.line.requests))[1].set_exception(Unavailable("lost"))

    def lose_answer(self, number: int) -> None:
        if self.line.answers:
            self.line.answers.pop(number % len(self.line.answers))[1].set_exception(Unavailable("lost"))

    def follow(self, _: int) -> None:
        self.node.follow(self.rows)

    def die(self, _: int) -> None:
        self.take_over()

    def check(self) -> None:
        for fence, (milli, _) in self.rows.items():
            assert milli >= self.node.has[fence][0], "what the node still holds was freed"
        held = sum(milli for milli, _ in self.rows.values())
        assert self.ledger.available(1)["cpu_milli"] == CAPACITY - held >= 0

    def agree(self) -> None:
        said, has = [{fence: milli for fence, (milli, _) in which.items()} for which in (self.rows, self.node.has)]
        assert said == has

    async def quiet(self) -> None:
        """Deliver all requests and responses without new decisions."""
        for _ in range(6):
            for step in (self.arrive, self.return_):
                while self.line.requests if step == self.arrive else self.line.answers:
                    step(0)
            await _others()
            self.turn(0)
            self.look(0)
            await _others()


async def _others() -> None:
    """Let the event loop send requests and receive responses."""
    for _ in range(4):
        await asyncio.sleep(0)


STEPS: dict[str, Callable[[World, int], None]] = {
    "decide": World.decide,
    "decide again": World.decide,
    "turn": World.turn,
    "look": World.look,
    "arrive": World.arrive,
    "return": World.return_,
    "lose request": World.lose_request,
    "lose answer": World.lose_answer,
    "follow": World.follow,
    "die": World.die,
}


async def _run(steps: list[tuple[str, int]]) -> None:
    world = World()
    await world.quiet()
    for name, number in steps:
        STEPS[name](world, number)
        await _others()
        world.check()
    await world.quiet()
    if not any(name == "die" for name, _ in steps):
        world.agree()
    world.die(0)
    await world.quiet()
    world.check()
    world.agree()


def _steps(names: Iterable[str]) -> st.SearchStrategy[list[tuple[str, int]]]:
    """Generate long step sequences, because most faults need several steps."""
    return st.lists(st.tuples(st.sampled_from(sorted(names)), st.integers(0, 11)), min_size=40, max_size=80)


@given(_steps(STEPS))
def test_random_resize_events_never_allocate_a_core_twice(steps: list[tuple[str, int]]) -> None:
    asyncio.run(_run(steps))


@given(_steps(STEPS.keys() - {"die"}))
def test_surviving_leader_agrees_with_the_node_after_all_events(steps: list[tuple[str, int]]) -> None:
    asyncio.run(_run(steps))
