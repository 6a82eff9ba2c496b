"""Rounds in which almost every queued action has its own class, for example its own script."""

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
    """A duration model that counts its calls."""

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


class TestDurationLookups:
    def test_next_round_looks_up_no_durations_again(self) -> None:
        durations = Counted()
        curves, queued = CurveCache(durations), [an_action(n, cls=a_class(n), submitted=NOW) for n in range(25_000)]
        snapshot = replace(a_snapshot(queued=queued, pools=[FULL]), now=NOW, curves=curves)
        asked = []
        for late in (0.0, 0.1, 0.2):
            curves.now = NOW + late
            SparPolicy(is_resizing=True).plan(replace(snapshot, now=curves.now))
            asked.append(durations.asked)
        assert asked[1:] == [asked[0], asked[0]]

    def test_queued_action_needs_only_one_duration_lookup(self) -> None:
        durations = Counted()
        curves, queued = CurveCache(durations), [an_action(n, cls=a_class(n), submitted=NOW) for n in range(100)]
        curves.now = NOW
        SparPolicy().plan(replace(a_snapshot(queued=queued, pools=[FULL]), now=NOW, curves=curves))
        assert durations.asked == len(queued)


class TestCacheToken:
    def test_many_ended_runs_change_cache_token_at_limited_rate(self) -> None:
        curves = of_many(MANY_CLASSES + 10)
        basis = curves.cache_token("use")
        for part in (1, 2, 3):
            curves.now = NOW + REFRESH_AFTER_RUN_S + part * REFRESH_AFTER_RUN_S / 4
            curves.invalidate(part)
            assert (curves.cache_token("use") is basis) == (part > 1)
            basis = curves.cache_token("use")
        curves.now = NOW + 3 * REFRESH_AFTER_RUN_S
        assert curves.cache_token("use") is not basis

    def test_curve_recomputed_within_interval_changes_token_afterwards(self) -> None:
        curves = of_many(MANY_CLASSES + 10)
        curves.now = NOW + REFRESH_AFTER_RUN_S
        basis = curves.cache_token("use")
        curves.invalidate(1)
        curves.now += REFRESH_AFTER_RUN_S / 2
        curves.curve_for(a_class(1))
        curves.now += REFRESH_AFTER_RUN_S / 2
        assert curves.cache_token("use") is not basis


class CountedIndex(RunningIndex):
    """A running index that counts lookups of resources that will be freed."""

    asked = 0

    def outside_environments(self, node: int) -> Resources:
        self.asked += 1
        return super().outside_environments(node)


def test_unattainable_memory_is_not_searched_for_every_action() -> None:
    """Environments occupy the memory; every overdue action needs a different amount of it."""
    free = {"cpu_milli": 8000, "memory_mib": 100}
    pools = [a_pool(node, cpu_milli=8000, memory_mib=64_000, free=free) for node in range(1, 51)]
    queued = [an_action(n, cls=replace(a_class(n), demand=needing(1000 + n)), submitted=0.0) for n in range(1, 301)]
    running = CountedIndex()
    SparPolicy().plan(replace(a_snapshot(queued=queued, pools=pools), now=NOW, running=running))
    assert 0 < running.asked <= 2 * len(pools)


def needing(memory_mib: int) -> ResourceDemand:
    return ResourceDemand({"cpu_milli": 1000, "memory_mib": memory_mib})
