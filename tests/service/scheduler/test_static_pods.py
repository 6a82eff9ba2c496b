"""Test the static pods policy in the scheduler's index: what a pod allocates and for how long."""

from dataclasses import replace

from arl_core.domain.model import Fence, Grant, Resources, ResourceShape, TrajectoryPod
from arl_core.policies.static_pods import StaticPods
from arl_scheduler.index.scheduler_index import SchedulerIndex
from arl_wire.internal.scheduler import QueuedActionRow
from support.builders import (
    a_class,
    a_held_action,
    a_node_row,
    a_poll,
    a_pool,
    a_queued_row,
    a_snapshot,
    an_action,
    an_environment_row,
    numbered,
)

NOW = 1000.0


def an_index(policy: StaticPods, *queued: QueuedActionRow) -> SchedulerIndex:
    """Return an index with one node of two cores and 1000 MiB, read by a first poll."""
    index = SchedulerIndex(policy)
    index.reconcile(a_poll(queued=queued))
    return index


def a_round(index: SchedulerIndex, policy: StaticPods) -> tuple[Grant, ...]:
    grants = policy.plan(index.snapshot(now=NOW, silent_after_s=10, watching_since=NOW)).grants
    index.apply_grants(grants, now=NOW)
    return grants


def free(index: SchedulerIndex) -> Resources:
    return index.snapshot(now=NOW, silent_after_s=10, watching_since=NOW).nodes[1].available


def ids(grants: tuple[Grant, ...]) -> list[int]:
    return [grant.fence.action_id.int for grant in grants]


class TestFullSizePods:
    POLICY = StaticPods(2000)

    def test_trajectory_keeps_its_cores_between_actions(self) -> None:
        index = an_index(self.POLICY, a_queued_row(1, trajectory="a", persistent=True))
        (grant,) = a_round(index, self.POLICY)
        assert grant.resources["cpu_milli"] == 2000
        index.release_attempts([grant.fence])
        assert free(index)["cpu_milli"] == 0
        index.admit([a_queued_row(2, trajectory="b", persistent=True), a_queued_row(3)])
        assert a_round(index, self.POLICY) == ()

    def test_next_action_of_a_trajectory_allocates_no_more(self) -> None:
        index = an_index(self.POLICY, a_queued_row(1, trajectory="a", persistent=True))
        index.release_attempts([grant.fence for grant in a_round(index, self.POLICY)])
        index.admit([a_queued_row(2, trajectory="a", persistent=True)])
        assert ids(a_round(index, self.POLICY)) == [2]
        assert free(index)["cpu_milli"] == 0

    def test_ended_trajectory_frees_its_pod_for_the_next(self) -> None:
        index = an_index(self.POLICY, a_queued_row(1, trajectory="a", persistent=True))
        (grant,) = a_round(index, self.POLICY)
        index.release_attempts([grant.fence])
        index.admit([a_queued_row(2, trajectory="b", persistent=True)])
        assert grant.environment is not None
        ended = an_environment_row(grant.environment, "a", is_ended=True, is_delete_requested=True)
        index.begin_poll()
        index.reconcile(a_poll(environments=[ended]))
        assert ids(a_round(index, self.POLICY)) == [2]

    def test_actions_outside_the_environment_use_pod_cores_sequentially(self) -> None:
        index = an_index(self.POLICY, a_queued_row(1, trajectory="a", persistent=True))
        index.release_attempts([grant.fence for grant in a_round(index, self.POLICY)])
        index.admit([a_queued_row(2, trajectory="a"), a_queued_row(3, trajectory="a")])
        (second,) = a_round(index, self.POLICY)
        assert (ids((second,)), second.environment, second.resources["cpu_milli"]) == ([2], None, 2000)
        assert a_round(index, self.POLICY) == ()
        index.release_attempts([second.fence])
        assert ids(a_round(index, self.POLICY)) == [3]

    def test_environment_action_waits_while_the_pod_runs_another_action(self) -> None:
        index = an_index(self.POLICY, a_queued_row(1, trajectory="a", persistent=True))
        index.release_attempts([grant.fence for grant in a_round(index, self.POLICY)])
        index.admit([a_queued_row(2, trajectory="a"), a_queued_row(3, trajectory="a", persistent=True)])
        assert ids(a_round(index, self.POLICY)) == [2]

    def test_action_without_trajectory_has_a_pod_until_it_ends(self) -> None:
        index = an_index(self.POLICY, a_queued_row(1))
        (grant,) = a_round(index, self.POLICY)
        assert (grant.resources["cpu_milli"], free(index)["cpu_milli"]) == (2000, 0)
        index.release_attempts([grant.fence])
        assert free(index)["cpu_milli"] == 2000

    def test_action_without_cores_still_opens_the_pod(self) -> None:
        creation = a_queued_row(1, trajectory="a", persistent=True, class_key=2, demand={"memory_mib": 100})
        index = an_index(self.POLICY, creation)
        (grant,) = a_round(index, self.POLICY)
        assert ("cpu_milli" in grant.resources, free(index)["cpu_milli"]) == (False, 0)

    def test_new_leader_restores_the_pods_from_rows(self) -> None:
        index = SchedulerIndex(self.POLICY)
        environment = an_environment_row(numbered(100), "a")
        running = a_held_action(
            Fence(numbered(1), 1),
            trajectory="a",
            resources={"cpu_milli": 2000, "memory_mib": 100, "disk_mib": 10},
            environment=numbered(100),
        )
        judging = a_held_action(Fence(numbered(2), 1), trajectory="a", resources={"cpu_milli": 2000, "memory_mib": 100})
        index.reconcile(a_poll(held=[running], environments=[environment]))
        assert free(index) == {"cpu_milli": 0, "memory_mib": 900, "disk_mib": 990}
        index.reconcile(a_poll(held=[judging], environments=[environment]))
        assert free(index) == {"cpu_milli": 0, "memory_mib": 800, "disk_mib": 990}


class TestSmallPods:
    def test_small_pods_admit_every_trajectory(self) -> None:
        policy = StaticPods(250)
        rows = [a_queued_row(number, trajectory=f"t{number}", persistent=True) for number in range(1, 9)]
        index = an_index(policy, *rows)
        grants = a_round(index, policy)
        assert len(grants) == 8
        assert {grant.resources["cpu_milli"] for grant in grants} == {250}
        assert free(index)["cpu_milli"] == 0


class TestOvercommittedPods:
    POLICY = StaticPods(2000, is_overcommitted=True)

    def test_overcommitted_pods_admit_every_trajectory_at_full_size(self) -> None:
        rows = [a_queued_row(number, trajectory=f"t{number}", persistent=True) for number in range(1, 9)]
        index = an_index(self.POLICY, *rows, a_queued_row(9))
        grants = a_round(index, self.POLICY)
        assert len(grants) == 9
        assert {grant.resources["cpu_milli"] for grant in grants} == {2000}

    def test_overcommitted_pods_still_respect_memory(self) -> None:
        rows = [a_queued_row(number, trajectory=f"t{number}", persistent=True) for number in range(1, 20)]
        index = an_index(self.POLICY, *rows)
        assert len(a_round(index, self.POLICY)) == 8


def test_unlimited_pods_are_all_admitted_with_all_cores_of_their_node() -> None:
    policy = StaticPods(1000, is_unlimited=True)
    rows = [a_queued_row(number, trajectory=f"t{number}", persistent=True) for number in range(1, 9)]
    index = an_index(policy, *rows, a_queued_row(9))
    most = free(index)["cpu_milli"]
    grants = a_round(index, policy)
    assert [grant.resources["cpu_milli"] for grant in grants] == [most] * 9
    assert free(index)["cpu_milli"] == most


def test_trajectory_on_a_cordoned_node_continues_there() -> None:
    policy = StaticPods(1000)
    index = an_index(policy, a_queued_row(1, trajectory="a", persistent=True))
    index.release_attempts([grant.fence for grant in a_round(index, policy)])
    index.admit([a_queued_row(2, trajectory="a", persistent=True)])
    index.reconcile(a_poll(nodes=[a_node_row(is_cordoned=True), a_node_row(2)]))
    assert [grant.node for grant in a_round(index, policy)] == [1]


def test_score_of_a_trajectory_ignores_its_pod() -> None:
    score = an_action(1, cls=a_class(shape=ResourceShape.QUOTA, slots=1))._replace(trajectory=(1, "a"))
    snapshot = a_snapshot(queued=[score], pools=[a_pool(2, shape=ResourceShape.QUOTA, slots=64)])
    (grant,) = StaticPods(1000).plan(replace(snapshot, pods={(1, "a"): TrajectoryPod(1, is_busy=True)})).grants
    assert (grant.node, grant.resources) == (2, {"slots": 1})


def test_blocked_pod_does_not_block_other_trajectories() -> None:
    policy = StaticPods(1000)
    index = an_index(policy, a_queued_row(1, trajectory="a", persistent=True))
    index.release_attempts([grant.fence for grant in a_round(index, policy)])
    index.admit([a_queued_row(2, trajectory="a", persistent=True), a_queued_row(3, trajectory="b", persistent=True)])
    index.reconcile(a_poll(nodes=[a_node_row(is_drain_expired=True, is_cordoned=True), a_node_row(2)]))
    assert [(grant.fence.action_id.int, grant.node) for grant in a_round(index, policy)] == [(3, 2)]


def test_action_running_on_an_ended_pod_keeps_its_cores() -> None:
    policy = StaticPods(2000)
    index = an_index(policy, a_queued_row(1, trajectory="a", persistent=True))
    (grant,) = a_round(index, policy)
    index.release_attempts([grant.fence])
    index.admit([a_queued_row(2, trajectory="a"), a_queued_row(3, trajectory="b", persistent=True)])
    (judging,) = a_round(index, policy)
    assert grant.environment is not None
    ended = an_environment_row(grant.environment, "a", is_ended=True, is_delete_requested=True)
    held = a_held_action(judging.fence, trajectory="a", resources=judging.resources)
    index.reconcile(a_poll(environments=[ended], held=[held]))
    assert (free(index)["cpu_milli"], a_round(index, policy)) == (0, ())
    index.release_attempts([judging.fence])
    assert ids(a_round(index, policy)) == [3]


def test_new_leader_does_not_count_a_score_as_pod_use() -> None:
    policy = StaticPods(2000)
    index = SchedulerIndex(policy)
    scoring = a_held_action(Fence(numbered(2), 1), trajectory="a", resources={"slots:m": 1}, node=2)
    queued = a_queued_row(3, trajectory="a", persistent=True)
    environment = an_environment_row(numbered(100), "a")
    nodes = [a_node_row(), a_node_row(2, kind="gpu", capacity={"slots:m": 64})]
    index.reconcile(a_poll(held=[scoring], environments=[environment], queued=[queued], nodes=nodes))
    assert ids(a_round(index, policy)) == [3]
