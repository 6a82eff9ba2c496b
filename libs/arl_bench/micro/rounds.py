"""Measure scheduling rounds without Postgres and nodes: the index and a policy with a given number of queued actions.

`python -m arl_bench.micro.rounds < sizes.json` prints its measurements as JSON. All values are drawn from a seed.
"""

import gc
import json
import resource
import sys
import time
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any
from uuid import UUID

from arl_core.domain.model import Grant
from arl_core.policies.spar import SparPolicy
from arl_core.queue.fairness import QueueWeight
from arl_kit.http_server.server import freeze_heap
from arl_scheduler.index.scheduler_index import SchedulerIndex
from arl_scheduler.queries.poll_result import NodeRow, PollResult
from arl_wire.internal.scheduler import QueuedActionRow

__all__ = ["RoundDriverSizes", "RoundMeasurement", "measure_rounds"]

RELEASED_PER_ROUND = 64
"""Number of actions that end between two rounds."""
POLL_INTERVAL_ROUNDS = 100
"""Rounds between polls, which report started actions. Only started actions can be resized. Managers confirm at once."""
WARMUP_ROUNDS = 2 * POLL_INTERVAL_ROUNDS
"""Rounds before the measurement. They fill the nodes and take back cores that were granted while nodes were empty."""


@dataclass(frozen=True, slots=True)
class RoundDriverSizes:
    waiting: int
    nodes: int = 100
    cores: int = 64
    classes: int = 256
    tasks: int = 8
    in_trajectories: float = 0.0
    """Fraction of actions that need their own environment, which never ends here and keeps its memory."""
    rounds: int = 300
    limit: int = 500
    resizing: bool = True
    seed: int = 0


@dataclass(slots=True)
class RoundMeasurement:
    round_s: list[float] = field(default_factory=list)
    granted: list[int] = field(default_factory=list)
    admit_s: float = 0.0
    bytes_waiting: int = 0
    resized: int = 0


def measure_rounds(sizes: RoundDriverSizes) -> RoundMeasurement:
    """Run scheduling rounds. Before each, some actions end and as many arrive."""
    gc.collect()
    before, numbers = _resident_bytes(), _ActionGenerator(sizes)
    index, found = SchedulerIndex(SparPolicy(is_resizing=sizes.resizing, limit=sizes.limit)), RoundMeasurement()
    index.reconcile(_make_poll_result(sizes))
    began = time.process_time()
    for _ in range(0, sizes.waiting, _PAGE):
        index.admit(numbers.generate(_PAGE))
    found.admit_s = time.process_time() - began
    freeze_heap()
    found.bytes_waiting = _resident_bytes() - before
    _run_rounds(index, numbers, sizes, found)
    return found


def _run_rounds(
    index: SchedulerIndex, generator: "_ActionGenerator", sizes: RoundDriverSizes, measurement: RoundMeasurement
) -> None:
    running: list[Grant] = []
    random, now = Random(sizes.seed), float(sizes.waiting) * 1e-4
    for number in count(1):
        if len(measurement.round_s) == sizes.rounds:
            return
        if number % POLL_INTERVAL_ROUNDS == 0:
            for hold in index.allocations:
                index.allocations.mark_started(hold, hold.started or now)
        over = [running.pop(random.randrange(len(running))) for _ in range(min(RELEASED_PER_ROUND, len(running)))]
        index.release_attempts(grant.fence for grant in over)
        index.allocations.take_released()  # like the leader, which learns from them
        index.admit(generator.generate(len(over)))
        now += 0.01
        began = time.process_time()
        plan = index.plan(now=now, silent_after_s=1e9, watching_since=0.0)
        index.apply_grants(plan.grants, now=now)
        for resize in plan.resizes:
            index.allocations.apply_resize(resize.fence, resize.resources, seq=1, now=now)
        took = time.process_time() - began
        running += plan.grants
        if number > WARMUP_ROUNDS:
            measurement.round_s.append(took)
            measurement.granted.append(len(plan.grants))
            measurement.resized += len(plan.resizes)


class _ActionGenerator:
    """An endless generator of queued rows."""

    def __init__(self, sizes: RoundDriverSizes) -> None:
        self._sizes, self._random, self._at = sizes, Random(sizes.seed), 0
        self._classes = [_make_class(key, self._random) for key in range(sizes.classes)]

    def generate(self, count: int) -> list[QueuedActionRow]:
        return [self._next() for _ in range(count)]

    def _next(self) -> QueuedActionRow:
        self._at += 1
        drawn, sizes = self._random, self._sizes
        has_environment = drawn.random() < sizes.in_trajectories
        cls = self._classes[drawn.randrange(sizes.classes)]
        return QueuedActionRow.model_construct(
            id=UUID(int=self._at << 64 | drawn.getrandbits(60)),
            queue_id=cls["class_key"] % sizes.tasks,
            submitted=self._at * 1e-4,
            trajectory=f"step-{self._at}" if has_environment else None,
            environment={"scope": "trajectory" if has_environment else "ephemeral"},
            **cls,
        )


def _make_class(key: int, random: Random) -> dict[str, Any]:
    memory = random.choice((128, 256, 512, 1024))
    demand = {"cpu_milli": 1000, "memory_mib": memory, "disk_mib": 64}
    amdahl = {"model": "amdahl", "parallel_fraction": random.uniform(0.5, 0.95)}
    elastic = {
        "resource": "cpu_milli",
        "min": 1000,
        "max": 16_000,
        "step": 1000,
        "elasticity": amdahl,
        "resizable": "any",
    }
    is_elastic = random.random() < 0.5
    shape = {"kind": "exec", "shape": "divisible", "demand": demand, "elastic": elastic if is_elastic else None}
    return {"class_key": key, "grant_no": 0, "environment_id": None, "deadline": None, "priority": 0} | shape


def _make_poll_result(sizes: RoundDriverSizes) -> PollResult:
    capacity = {"cpu_milli": 1000 * sizes.cores, "memory_mib": 4096 * sizes.cores, "disk_mib": 16_384 * sizes.cores}
    nodes = [
        NodeRow(
            id=number,
            name=f"node-{number}",
            kind="cpu",
            url="http://node",
            epoch=UUID(int=number),
            capacity=capacity,
            enforced=frozenset(),
            is_cordoned=False,
            last_heartbeat=0.0,
        )
        for number in range(1, sizes.nodes + 1)
    ]
    weights = {task: QueueWeight(project=task % 4, project_weight=1.0 + task % 2) for task in range(sizes.tasks)}
    return PollResult(
        now=0.0,
        checkpoint=1,
        queued=(),
        allocations=(),
        cancelled=(),
        nodes=tuple(nodes),
        environments=(),
        weights=weights,
    )


def _resident_bytes() -> int:
    pages = int(open("/proc/self/statm").read().split()[1])  # noqa: SIM115
    return pages * resource.getpagesize()


_PAGE = 1000

if __name__ == "__main__":
    sizes = RoundDriverSizes(**json.load(sys.stdin))
    measured = measure_rounds(sizes)
    json.dump(
        {
            "round_s": measured.round_s,
            "granted": measured.granted,
            "admit_s": measured.admit_s,
            "bytes_waiting": measured.bytes_waiting,
            "resized": measured.resized,
        },
        sys.stdout,
    )
