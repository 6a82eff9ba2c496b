"""Test that actions that cannot meet their deadline are reported once, and early if this is known."""

from uuid import UUID

from arl_core.domain.model import Fence, Grant
from arl_scheduler.index.deadlines import UNREACHABLE
from arl_scheduler.index.scheduler_index import SchedulerIndex
from arl_wire.internal.scheduler import QueuedActionRow
from support.builders import a_poll, a_queued_row, numbered

NOW = 1000.0


def an_index(*queued: QueuedActionRow) -> SchedulerIndex:
    index = SchedulerIndex()
    index.reconcile(a_poll(queued=queued))
    return index


def a_round_of(index: SchedulerIndex, number: int) -> list[Grant]:
    fence = Fence(UUID(int=number), 1)
    return [Grant(fence=fence, node=1, resources={"cpu_milli": 1000, "memory_mib": 100, "disk_mib": 10})]


class TestDeadlines:
    def test_overdue_action_is_reported_once_and_only_while_queued(self) -> None:
        index = an_index(*(a_queued_row(n, deadline=NOW + n) for n in (1, 2, 3)))
        index.apply_grants(a_round_of(index, 1), now=NOW)
        assert index.take_missed_deadlines(NOW + 2, limit=100) == {numbered(2): None}
        assert (index.take_missed_deadlines(NOW + 2, limit=100), index.next_deadline()) == ({}, NOW + 3)

    def test_action_with_too_little_time_left_is_reported_early(self) -> None:
        index = SchedulerIndex(min_run_time_s=lambda cls: 5.0)
        index.reconcile(a_poll(queued=[a_queued_row(1, deadline=NOW + 7)]))
        assert index.take_missed_deadlines(NOW + 1, limit=100) == {}
        assert index.next_deadline() == NOW + 2
        assert index.take_missed_deadlines(NOW + 2, limit=100) == {numbered(1): UNREACHABLE}

    def test_shorter_learned_run_time_delays_the_early_report(self) -> None:
        usual_s = [5.0]
        index = SchedulerIndex(min_run_time_s=lambda cls: usual_s[0])
        index.reconcile(a_poll(queued=[a_queued_row(1, deadline=NOW + 7)]))
        usual_s[0] = 1.0
        assert index.take_missed_deadlines(NOW + 2, limit=100) == {}
        assert index.next_deadline() == NOW + 6

    def test_action_rescheduled_after_a_stale_report_is_reported_again(self) -> None:
        index = an_index(a_queued_row(1, deadline=NOW))
        assert index.take_missed_deadlines(NOW + 5, limit=100) == {numbered(1): None}
        index.deadlines.reschedule([numbered(1)], NOW + 6)
        assert (index.take_missed_deadlines(NOW + 5, limit=100), index.next_deadline()) == ({}, NOW + 6)
        assert index.take_missed_deadlines(NOW + 6, limit=100) == {numbered(1): None}

    def test_actions_that_left_the_queue_are_removed_from_the_deadlines(self) -> None:
        index = an_index(
            a_queued_row(0, deadline=NOW + 1), *(a_queued_row(n, deadline=NOW + 9) for n in range(1, 1200))
        )
        index.drop_refused([numbered(n) for n in range(1, 1200)])
        assert (index.take_missed_deadlines(NOW, limit=100), len(index.deadlines)) == ({}, 1)
        assert index.take_missed_deadlines(NOW + 1, limit=100) == {numbered(0): None}
