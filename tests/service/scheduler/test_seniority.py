"""Test that actions are ordered by the start of their trajectories."""

from arl_core.domain.model import Grant
from arl_core.policies.policy import FirstComeFirstServed
from arl_core.queue.action_bucket import MAX_SENIORITY_S
from arl_scheduler.index.scheduler_index import SchedulerIndex
from arl_wire.internal.scheduler import QueuedActionRow
from support.builders import a_poll, a_queued_row, an_environment_row, numbered

NOW = 1000.0


def an_index(*queued: QueuedActionRow) -> SchedulerIndex:
    """Return an index with one node of two cores, read by a first poll."""
    index = SchedulerIndex()
    index.reconcile(a_poll(queued=queued))
    return index


def a_round(index: SchedulerIndex) -> tuple[Grant, ...]:
    grants = FirstComeFirstServed().plan(index.snapshot(now=NOW, silent_after_s=10, watching_since=NOW)).grants
    index.apply_grants(grants, now=NOW)
    return grants


def ids(grants: tuple[Grant, ...]) -> list[int]:
    return [grant.fence.action_id.int for grant in grants]


def settled(index: SchedulerIndex, grants: tuple[Grant, ...]) -> None:
    index.release_attempts(grant.fence for grant in grants)


def test_actions_of_an_older_trajectory_are_granted_first() -> None:
    index = an_index(
        a_queued_row(1, trajectory="old", persistent=True, submitted=100.0),
        a_queued_row(2, trajectory="young", persistent=True, submitted=101.0),
    )
    settled(index, a_round(index))
    index.admit([a_queued_row(3, trajectory="young", persistent=True, submitted=110.0)])
    index.admit([a_queued_row(4, trajectory="old", persistent=True, submitted=111.0)])
    index.admit([a_queued_row(5, trajectory="old", submitted=112.0), a_queued_row(6, submitted=105.0)])
    assert ids(a_round(index)) == [4, 5]


def test_trajectory_seniority_is_limited_to_one_minute() -> None:
    index = an_index(a_queued_row(1, trajectory="old", persistent=True, submitted=100.0))
    settled(index, a_round(index))
    index.admit([a_queued_row(2, submitted=1000.0), a_queued_row(3, submitted=1001.0)])
    index.admit([a_queued_row(4, trajectory="old", persistent=True, submitted=1000.5 + MAX_SENIORITY_S)])
    assert ids(a_round(index)) == [2, 4]


def test_new_leader_reads_seniority_from_the_environment() -> None:
    index = SchedulerIndex()
    living = [
        an_environment_row(numbered(100), "old", created=50.0),
        an_environment_row(numbered(101), "young", created=60.0),
    ]
    queued = [
        a_queued_row(1, trajectory="young", persistent=True, submitted=90.0, demand={"cpu_milli": 2000}),
        a_queued_row(2, trajectory="old", persistent=True, submitted=91.0, demand={"cpu_milli": 2000}),
    ]
    index.reconcile(a_poll(queued=queued, environments=living))
    assert ids(a_round(index)) == [2]
