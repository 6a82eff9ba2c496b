"""Fair shares over time: each grant goes to the task that has used the least."""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from arl_core.queue.fairness import FairShares, QueueWeight

CORES, SLOTS = 64, 8
TOTAL = {"cpu": CORES, "slots": SLOTS}


@dataclass(frozen=True)
class Kind:
    """The actions of one task; the task always has more of them queued."""

    run_s: float
    resource: str = "cpu"
    at_once: int = 1 << 30


def used_s(kinds: Mapping[int, Kind], *, until_s: float) -> dict[int, float]:
    """Return each task's unit-seconds in the second half of the time, with correct estimates."""
    shares, running, free = FairShares(), dict.fromkeys(kinds, 0), dict(TOTAL)
    ends: list[tuple[float, int, float]] = []
    used = dict.fromkeys(kinds, 0.0)
    for task in kinds:
        shares.add_action(task)
    now = 0.0
    while now < until_s:
        while able := [t for t, kind in kinds.items() if free[kind.resource] and running[t] < kind.at_once]:
            task = min(able, key=lambda each: (shares.virtual_s(each), kinds[each].run_s))
            kind = kinds[task]
            free[kind.resource] -= 1
            running[task] += 1
            shares.add_action(task)
            expected = shares.charge_expected(task, kind.run_s / TOTAL[kind.resource], kind.resource)
            heapq.heappush(ends, (now + kind.run_s, task, expected))
            used[task] += max(0.0, min(until_s, now + kind.run_s) - max(now, until_s / 2))
        now, task, expected = heapq.heappop(ends)
        kind = kinds[task]
        free[kind.resource] += 1
        running[task] -= 1
        shares.settle(task, expected, kind.run_s / TOTAL[kind.resource])
        shares.remove_action(task)
    return used


@pytest.mark.parametrize("run_s", [2.0, 30.0, 60.0, 300.0])
@pytest.mark.parametrize(
    "beside", [{}, {3: Kind(1.0, "slots")}], ids=["no other task", "with a task on other resources"]
)
def test_long_actions_get_same_share_as_short_actions(run_s: float, beside: dict[int, Kind]) -> None:
    used = used_s({1: Kind(run_s), 2: Kind(1.0), **beside}, until_s=8 * run_s + 400)
    assert used[1] / (used[1] + used[2]) == pytest.approx(0.5, abs=0.05)


def test_long_action_charges_its_task_only_its_run_time() -> None:
    """Both tasks are entitled to 32 cores; the first runs one action of 3000 s."""
    shares = FairShares()
    for task in (1, 2):
        shares.add_action(task)
    shares.add_action(1)
    shares.charge_expected(1, 3000 / CORES, "cpu")
    given = {1: 0, 2: 0}
    for _ in range(60_000):
        task = min((1, 2), key=shares.virtual_s)
        given[task] += 1
        shares.settle(task, shares.charge_expected(task, 1 / CORES, "cpu"), 1 / CORES)
    assert given[2] - given[1] == pytest.approx(3000, abs=2)


def test_task_limited_by_quota_gains_only_bounded_credit() -> None:
    """A quota of one core out of 64 kept the task below its share; its saved credit is bounded."""
    shares = FairShares()
    for task in (1, 2):
        shares.add_action(task)
    for _ in range(64_000):
        shares.settle(2, shares.charge_expected(2, 1 / CORES, "cpu"), 1 / CORES)
    shares.settle(1, shares.charge_expected(1, 1 / CORES, "cpu"), 1 / CORES)
    given = {1: 0, 2: 0}
    for _ in range(2000):
        task = min((1, 2), key=shares.virtual_s)
        given[task] += 1
        shares.settle(task, shares.charge_expected(task, 1 / CORES, "cpu"), 1 / CORES)
    assert given[2] > 500


def test_paused_task_takes_no_share_of_its_project() -> None:
    shares = FairShares()
    shares.set_weights({1: QueueWeight(1), 2: QueueWeight(1), 3: QueueWeight(2)})
    for task in (1, 2, 3):
        shares.add_action(task)
    shares.set_paused(frozenset({2}))
    assert [shares.effective_weight(task) for task in (1, 3)] == [1.0, 1.0]
    shares.add_action(2)
    expected = shares.charge_expected(2, 1.0, "cpu")
    assert shares.effective_weight(1) == 0.5  # it has some of it as long as that runs
    shares.settle(2, expected, 1.0)
    shares.remove_action(2)
    assert shares.effective_weight(1) == 1.0
    shares.set_paused(frozenset())
    assert [shares.effective_weight(task) for task in (1, 2, 3)] == [0.5, 0.5, 1.0]


def test_new_task_starts_level_with_users_of_same_resource() -> None:
    shares = FairShares()
    for task in (1, 2):
        shares.add_action(task)
    for task, resource, used in ((1, "cpu", 1000.0), (2, "slots", 5.0)):
        for _ in range(2):
            shares.settle(task, shares.charge_expected(task, used, resource), used)
    shares.add_action(3, "cpu")
    shares.add_action(4, "slots")
    assert (shares.virtual_s(3), shares.virtual_s(4)) == (1000.0, 10.0)


def test_fraction_of_a_task_is_its_weight_among_the_active_tasks() -> None:
    shares = FairShares()
    shares.set_weights({1: QueueWeight(project=1, weight=3.0), 2: QueueWeight(project=1)})
    shares.add_action(1)
    assert shares.fraction(1) == 1.0
    shares.add_action(2)
    assert shares.fraction(1) == pytest.approx(0.75)
    assert FairShares().fraction(7) == 1.0
