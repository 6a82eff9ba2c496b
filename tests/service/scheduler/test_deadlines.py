"""Actions that can't end in time are named once, and before their deadline where that is known."""

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
    def test_an_overdue_action_is_named_once_and_only_while_queued(self) -> None:
        index = an_index(*(a_queued_row(n, deadline=NOW + n) for n in (1, 2, 3)))
        index.apply_grants(a_round_of(index, 1), now=NOW)
        assert index.take_missed_deadlines(NOW + 2) == {numbered(2): None}
        assert (index.take_missed_deadlines(NOW + 2), index.next_deadline()) == ({}, NOW + 3)

    def test_one_that_usually_takes_longer_than_is_left_is_named_before(self) -> None:
        index = SchedulerIndex(min_run_time_s=lambda cls: 5.0)
        index.reconcile(a_poll(queued=[a_queued_row(1, deadline=NOW + 7)]))
        assert index.take_missed_deadlines(NOW + 1) == {}
        assert index.next_deadline() == NOW + 2
        assert index.take_missed_deadlines(NOW + 2) == {numbered(1): UNREACHABLE}

    def test_what_was_learnt_since_counts(self) -> None:
        usual_s = [5.0]
        index = SchedulerIndex(min_run_time_s=lambda cls: usual_s[0])
        index.reconcile(a_poll(queued=[a_queued_row(1, deadline=NOW + 7)]))
        usual_s[0] = 1.0
        assert index.take_missed_deadlines(NOW + 2) == {}
        assert index.next_deadline() == NOW + 6

    def test_one_that_postgres_does_not_find_late_is_looked_at_again(self) -> None:
        index = an_index(a_queued_row(1, deadline=NOW))
        assert index.take_missed_deadlines(NOW + 5) == {numbered(1): None}
        index.deadlines.reschedule([numbered(1)], NOW + 6)
        assert (index.take_missed_deadlines(NOW + 5), index.next_deadline()) == ({}, NOW + 6)
        assert index.take_missed_deadlines(NOW + 6) == {numbered(1): None}

    def test_what_waits_no_more_is_not_remembered_until_its_deadline(self) -> None:
        index = an_index(
            a_queued_row(0, deadline=NOW + 1), *(a_queued_row(n, deadline=NOW + 9) for n in range(1, 1200))
        )
        index.drop_refused([numbered(n) for n in range(1, 1200)])
        assert (index.take_missed_deadlines(NOW), len(index.deadlines)) == ({}, 1)
        assert index.take_missed_deadlines(NOW + 1) == {numbered(0): None}
