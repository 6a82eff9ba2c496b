"""Test resizes on a real launcher: the kernel's CPU affinity shows that cores stay exclusive."""

import os
import random
from pathlib import Path
from uuid import uuid4

import pytest

from arl_core.domain.model import Fence
from arl_cpu.node.allocations import AttemptAllocation, NodeAllocations
from arl_cpu.node.attempt_resizer import AttemptResizer
from arl_wire.internal.node import ResizePayload
from support.conditions import eventually
from support.sandbox import Bench, a_bench, a_command, living_descendants, sandboxes

CORES = tuple(sorted(os.sched_getaffinity(0)))[:4]
STEPS = 60
AMOUNTS = (300, 500, 1000, 1500, 2000)


class Node:
    """Two running actions, their processes and the manager's allocations for them."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.holdings = NodeAllocations({"cpu_milli": 1000 * len(CORES)}, CORES)
        self.resizes = AttemptResizer(self.holdings, bench.executor)
        self.pids: dict[Fence, int] = {}
        self._seq = 0

    async def start(self, cpu_milli: int) -> None:
        assert self.bench.launcher is not None
        launcher = self.bench.launcher.pid
        attempt = AttemptAllocation(Fence(uuid4(), 1), {"cpu_milli": cpu_milli}, None)
        assert self.holdings.allocate(attempt)
        cores = self.holdings.assign_cores(attempt)
        await self.bench.begin(a_command("sleep", "60", fence=attempt.fence, cpu_milli=cpu_milli, cores=cores))
        known = set(self.pids.values())

        def sleeping() -> set[int]:
            return {pid for pid in living_descendants(launcher) if _name_of(pid) == "sleep"} - known

        await eventually(lambda: bool(sleeping()))
        self.pids[attempt.fence] = sleeping().pop()

    async def resize(self, *amounts: int) -> list[str]:
        self._seq += 1
        bodies = [
            ResizePayload(id=fence.action_id, grant_no=fence.grant_no, cpu_milli=cpu_milli, amounts_seq=self._seq)
            for fence, cpu_milli in zip(self.pids, amounts, strict=True)
        ]
        return [answer.status for answer in await self.resizes.apply(bodies)]

    def cores_by_amount(self) -> list[tuple[int, set[int]]]:
        """Return the allocated milli-cores and the kernel's CPU affinity of each action."""
        held = [self.holdings.get(fence) for fence in self.pids]
        return [
            (attempt.cpu_milli, os.sched_getaffinity(pid))
            for attempt, pid in zip(held, self.pids.values(), strict=True)
            if attempt is not None
        ]


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


@pytest.mark.skipif(len(CORES) < 2, reason="one core")
@pytest.mark.parametrize("driver", ["unsafe-local", *sandboxes(slow=("landlock",))])
async def test_random_resizes_never_give_two_actions_the_same_exclusive_core(tmp_path: Path, driver: str) -> None:
    choose = random.Random(7)
    async with a_bench(tmp_path, driver) as bench:
        node = Node(bench)
        await node.start(1000)
        await node.start(1000)
        outcomes: set[str] = set()
        for _ in range(STEPS):
            outcomes.update(await node.resize(choose.choice(AMOUNTS), choose.choice(AMOUNTS)))
            seen = node.cores_by_amount()
            assert [len(cores) for _, cores in seen] == [-(-amount // 1000) for amount, _ in seen]
            own = [cores for amount, cores in seen if amount % 1000 == 0]
            assert sum(map(len, own)) == len(set().union(*own))
        assert outcomes == ({"done", "full"} if len(CORES) < 4 else {"done"})
