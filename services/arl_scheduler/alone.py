"""Rounds without Postgres and without nodes: the index and a policy under as many waiting actions as is asked for.

`python -m arl_scheduler.alone < sizes.json`; what it measured goes to standard output. Everything is drawn from a seed.
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

from arl_core.fairness import QueueWeight
from arl_core.model import Grant
from arl_core.spar import Spar
from arl_kit import collector
from arl_scheduler.index import Index
from arl_scheduler.rows import NodeRow, PollResult
from arl_wire.internal import QueuedAction

__all__ = ["Measured", "Sizes", "measure"]

FREED_AT_ONCE = 64
"""Actions that end between two rounds."""
POLLED_EVERY = 100
"""Rounds: only then is it known which actions have started, and can be resized. Managers confirm at once here."""
SETTLED_AFTER = 2 * POLLED_EVERY
"""Rounds that fill the nodes, and take back what was given while there was room; then the system is at work."""


@dataclass(frozen=True, slots=True)
class Sizes:
    waiting: int
    nodes: int = 100
    cores: int = 64
    classes: int = 256
    tasks: int = 8
    in_trajectories: float = 0.0
    """The part of the actions that need an environment of their own, which here never ends and keeps its memory."""
    rounds: int = 300
    limit: int = 500
    resizing: bool = True
    seed: int = 0


@dataclass(slots=True)
class Measured:
    round_s: list[float] = field(default_factory=list)
    granted: list[int] = field(default_factory=list)
    admit_s: float = 0.0
    bytes_waiting: int = 0
    resized: int = 0


def measure(sizes: Sizes) -> Measured:
    """One round after the other, each after some actions ended and as many came."""
    gc.collect()
    before, numbers = _resident(), _Numbers(sizes)
    index, found = Index(Spar(resizing=sizes.resizing, limit=sizes.limit)), Measured()
    index.reconcile(_poll(sizes))
    began = time.process_time()
    for _ in range(0, sizes.waiting, _PAGE):
        index.admit(numbers.take(_PAGE))
    found.admit_s = time.process_time() - began
    collector.freeze()
    found.bytes_waiting = _resident() - before
    _rounds(index, numbers, sizes, found)
    return found


def _rounds(index: Index, numbers: "_Numbers", sizes: Sizes, found: Measured) -> None:
    running: list[Grant] = []
    random, now = Random(sizes.seed), float(sizes.waiting) * 1e-4  # noqa: S311
    for number in count(1):
        if len(found.round_s) == sizes.rounds:
            return
        if number % POLLED_EVERY == 0:
            for hold in index.holds:
                index.holds.started(hold, hold.started or now)
        over = [running.pop(random.randrange(len(running))) for _ in range(min(FREED_AT_ONCE, len(running)))]
        index.freed(grant.fence for grant in over)
        index.holds.released()  # as the leader does, which learns from them
        index.admit(numbers.take(len(over)))
        now += 0.01
        began = time.process_time()
        plan = index.plan(now=now, silent_after_s=1e9, watching_since=0.0)
        index.granted(plan.grants, now=now)
        for resize in plan.resizes:
            index.holds.resized(resize.fence, resize.amounts, seq=1, now=now)
        took = time.process_time() - began
        running += plan.grants
        if number > SETTLED_AFTER:
            found.round_s.append(took)
            found.granted.append(len(plan.grants))
            found.resized += len(plan.resizes)


class _Numbers:
    """An endless line of queued rows."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes, self._random, self._at = sizes, Random(sizes.seed), 0  # noqa: S311
        self._classes = [_a_class(key, self._random) for key in range(sizes.classes)]

    def take(self, count: int) -> list[QueuedAction]:
        return [self._next() for _ in range(count)]

    def _next(self) -> QueuedAction:
        self._at += 1
        drawn, sizes = self._random, self._sizes
        has_environment = drawn.random() < sizes.in_trajectories
        cls = self._classes[drawn.randrange(sizes.classes)]
        return QueuedAction.model_construct(
            id=UUID(int=self._at << 64 | drawn.getrandbits(60)),
            queue_id=cls["class_key"] % sizes.tasks,
            submitted=self._at * 1e-4,
            trajectory=f"step-{self._at}" if has_environment else None,
            environment={"scope": "trajectory" if has_environment else "ephemeral"},
            **cls,
        )


def _a_class(key: int, random: Random) -> dict[str, Any]:
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


def _poll(sizes: Sizes) -> PollResult:
    capacity = {"cpu_milli": 1000 * sizes.cores, "memory_mib": 4096 * sizes.cores, "disk_mib": 16_384 * sizes.cores}
    nodes = [
        NodeRow(
            id=number,
            kind="cpu",
            url="http://node",
            epoch=UUID(int=number),
            capacity=capacity,
            enforces=frozenset(),
            closed=False,
            last_sign=0.0,
        )
        for number in range(1, sizes.nodes + 1)
    ]
    weights = {task: QueueWeight(project=task % 4, project_weight=1.0 + task % 2) for task in range(sizes.tasks)}
    return PollResult(
        now=0.0, mark=1, queued=(), held=(), cancelled=(), nodes=tuple(nodes), environments=(), weights=weights
    )


def _resident() -> int:
    pages = int(open("/proc/self/statm").read().split()[1])  # noqa: SIM115
    return pages * resource.getpagesize()


_PAGE = 1000

if __name__ == "__main__":
    sizes = Sizes(**json.load(sys.stdin))
    measured = measure(sizes)
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
