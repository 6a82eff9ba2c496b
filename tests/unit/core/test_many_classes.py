"""Rounds where hardly two of the actions that wait are of one class, as where each runs a script of its own."""

from dataclasses import dataclass, replace

from arl_core.capacity.running_index import RunningIndex
from arl_core.domain.model import ActionClass, ResourceDemand, Resources
from arl_core.durations.curves import MANY_CLASSES, REFRESH_AFTER_RUN_S, CurveCache
from arl_core.policies.spar import SparPolicy
from support.builders import a_class, a_pool, a_snapshot, an_action

NOW = 1000.0
FULL = a_pool(cpu_milli=4000, free={"cpu_milli": 0})


@dataclass
class Counted:
    """Durations, and how often they were asked for."""

    asked: int = 0

    def seconds(self, cls: ActionClass, amount: int) -> float:
        self.asked += 1
        return 1.0


def of_many(count: int) -> CurveCache:
    curves = CurveCache()
    curves.now = NOW
    for key in range(count):
        curves.curve_for(a_class(key))
    return curves


class TestRounds:
    def test_a_round_asks_for_no_durations_that_the_one_before_it_asked_for(self) -> None:
        durations = Counted()
        curves, queued = CurveCache(durations), [an_action(n, cls=a_class(n), submitted=NOW) for n in range(25_000)]
        snapshot = replace(a_snapshot(queued=queued, pools=[FULL]), now=NOW, curves=curves)
        asked = []
        for late in (0.0, 0.1, 0.2):
            curves.now = NOW + late
            SparPolicy(is_resizing=True).plan(replace(snapshot, now=curves.now))
            asked.append(durations.asked)
        assert asked[1:] == [asked[0], asked[0]]

    def test_of_what_only_waits_no_more_than_one_duration_is_asked_for(self) -> None:
        durations = Counted()
        curves, queued = CurveCache(durations), [an_action(n, cls=a_class(n), submitted=NOW) for n in range(100)]
        curves.now = NOW
        SparPolicy().plan(replace(a_snapshot(queued=queued, pools=[FULL]), now=NOW, curves=curves))
        assert durations.asked == len(queued)


class TestBasis:
    def test_one_of_many_that_ended_changes_what_was_made_of_all_once_a_second_at_most(self) -> None:
        curves = of_many(MANY_CLASSES + 10)
        basis = curves.cache_token("use")
        for part in (1, 2, 3):
            curves.now = NOW + REFRESH_AFTER_RUN_S + part * REFRESH_AFTER_RUN_S / 4
            curves.invalidate(part)
            assert (curves.cache_token("use") is basis) == (part > 1)
            basis = curves.cache_token("use")
        curves.now = NOW + 3 * REFRESH_AFTER_RUN_S
        assert curves.cache_token("use") is not basis

    def test_a_curve_made_anew_before_that_is_another_basis_after_it(self) -> None:
        curves = of_many(MANY_CLASSES + 10)
        curves.now = NOW + REFRESH_AFTER_RUN_S
        basis = curves.cache_token("use")
        curves.invalidate(1)
        curves.now += REFRESH_AFTER_RUN_S / 2
        curves.curve_for(a_class(1))
        curves.now += REFRESH_AFTER_RUN_S / 2
        assert curves.cache_token("use") is not basis


class CountedIndex(RunningIndex):
    """Of what runs, and how often it was asked what comes back."""

    asked = 0

    def outside_environments(self, node: int) -> Resources:
        self.asked += 1
        return super().outside_environments(node)


def test_what_no_node_will_ever_have_is_not_looked_for_by_all_who_want_as_much() -> None:
    """Environments hold the memory; each action that waits wants another amount of it, and all are overdue."""
    free = {"cpu_milli": 8000, "memory_mib": 100}
    pools = [a_pool(node, cpu_milli=8000, memory_mib=64_000, free=free) for node in range(1, 51)]
    queued = [an_action(n, cls=replace(a_class(n), demand=needing(1000 + n)), submitted=0.0) for n in range(1, 301)]
    running = CountedIndex()
    SparPolicy().plan(replace(a_snapshot(queued=queued, pools=pools), now=NOW, running=running))
    assert 0 < running.asked <= 2 * len(pools)


def needing(memory_mib: int) -> ResourceDemand:
    return ResourceDemand({"cpu_milli": 1000, "memory_mib": memory_mib})
