"""Test which actions of a trajectory may go first."""

from arl_scheduler.index.step_tracker import StepTracker
from arl_wire.internal.scheduler import GangMembership
from support.builders import a_queued_row, numbered


def test_member_of_a_gang_is_never_preferred() -> None:
    tracker = StepTracker()
    gang = GangMembership(id=numbered(7), size=2)
    for number, membership in ((1, None), (2, gang)):
        tracker.add_queued(numbered(number), a_queued_row(number, step=1, trajectory="t", gang=membership))
    assert tracker.may_go_first(numbered(1))
    assert not tracker.may_go_first(numbered(2))
    tracker.drop([numbered(2)], at=1.0)
    assert tracker.may_go_first(numbered(2))
