"""The load by kind of node: waiting and running actions that further nodes could serve."""

from dataclasses import replace

from arl_core.domain.model import (
    Fence,
    Gang,
    PinnedEnvironment,
    ResourceShape,
    RunningAction,
    call_resource,
    slot_resource,
)
from arl_core.durations.curves import CurveCache
from arl_core.durations.estimates import DurationEstimates
from arl_core.inquiry.backlog import measure_load
from arl_core.queue.quotas import QuotaUsage, TaskQuota
from support.builders import a_class, a_pool, a_snapshot, an_action, numbered


def test_waiting_actions_count_by_kind_of_node() -> None:
    quota = ResourceShape.QUOTA
    scores = an_action(1, cls=a_class(1, shape=quota, **{slot_resource("m"): 1}))
    calls = an_action(2, cls=a_class(2, shape=quota, **{call_resource("e"): 1}))
    groups = an_action(3, cls=a_class(3, shape=ResourceShape.GROUP, gpu=2))
    found = measure_load(a_snapshot(queued=[scores, calls, groups, an_action(4), an_action(5)]))
    assert {kind: load.waiting for kind, load in found.items()} == {"cpu": 2, "gpu": 2, "api": 1}
    assert (found["cpu"].waiting_milli, found["cpu"].oldest_submitted) == (2000, 4.0)


def test_estimated_actions_count_core_seconds_and_others_only_cores() -> None:
    known, unknown = a_class(1, cpu_milli=2000), a_class(2, memory_mib=64, cpu_milli=500)
    durations = DurationEstimates()
    snapshot = a_snapshot(queued=[an_action(1, cls=known), an_action(2, cls=known), an_action(3, cls=unknown)])
    without = measure_load(replace(snapshot, curves=CurveCache(durations)))["cpu"]
    assert (without.waiting_milli_s, without.unknown_milli) == (0.0, 4500)
    durations.observe(known, amount=2000, run_s=3.0)
    load = measure_load(replace(snapshot, curves=CurveCache(durations)))["cpu"]
    assert load.waiting_milli_s >= 2 * 2000 * 3.0  # and the pooled estimate of the other class
    assert load.unknown_milli == 0


def test_actions_of_a_node_and_of_paused_tasks_need_no_further_nodes() -> None:
    there = an_action(1, environment=PinnedEnvironment(numbered(9), 1))
    snapshot = a_snapshot(queued=[there, an_action(2)])
    load = measure_load(snapshot)["cpu"]
    assert (load.waiting, load.pinned) == (1, 1)
    snapshot.queue.pause(frozenset({1}))
    assert measure_load(snapshot)["cpu"].waiting == 0


def test_actions_beyond_the_quota_of_their_task_do_not_count() -> None:
    quotas = QuotaUsage()
    quotas.set_quotas({1: TaskQuota(actions=3)}, [(1, {"cpu_milli": 1000})])
    snapshot = replace(a_snapshot(queued=[an_action(number) for number in range(1, 6)]), quotas=quotas)
    assert measure_load(snapshot)["cpu"].waiting == 2


def test_a_gang_counts_with_all_its_members() -> None:
    gang = Gang(numbered(7), 3)
    head, *others = (an_action(number)._replace(gang=gang) for number in (1, 2, 3))
    load = measure_load(a_snapshot(queued=[head._replace(gang_members=tuple(others))]))["cpu"]
    assert (load.waiting, load.waiting_milli) == (3, 3000)


def test_running_actions_count_with_their_minimum() -> None:
    grown = RunningAction(Fence(numbered(1), 1), a_class(1), 1, {"cpu_milli": 4000}, 0.0, 1, 0.0)
    unknown = RunningAction(Fence(numbered(2), 1), None, 1, {"cpu_milli": 500}, 0.0, 1, 0.0)
    load = measure_load(a_snapshot(pools=[a_pool(1)], running=[grown, unknown]))["cpu"]
    assert (load.running, load.busy_milli) == (2, 1500)
