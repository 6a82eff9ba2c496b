import pytest

from arl_core.domain.states import TRANSITIONS, ActionOutcome, ActionState, ServiceRole


def test_settled_action_never_changes_state() -> None:
    assert all(edge.old is not ActionState.SETTLED for edge in TRANSITIONS)


def test_every_state_and_outcome_is_reachable() -> None:
    assert {edge.new for edge in TRANSITIONS} == set(ActionState)
    assert set().union(*(edge.outcomes for edge in TRANSITIONS)) == set(ActionOutcome)


def test_only_settling_transitions_set_an_outcome() -> None:
    assert all(bool(edge.outcomes) == (edge.new is ActionState.SETTLED) for edge in TRANSITIONS)


@pytest.mark.parametrize(
    ("old", "new", "writer"),
    [
        (ActionState.QUEUED, ActionState.GRANTED, ServiceRole.SCHEDULER),
        (ActionState.GRANTED, ActionState.RUNNING, ServiceRole.CPU),
        (ActionState.RUNNING, ActionState.SETTLED, ServiceRole.CPU),
        (ActionState.GRANTED, ActionState.QUEUED, ServiceRole.CPU),
        (ActionState.GRANTED, ActionState.QUEUED, ServiceRole.SCHEDULER),
    ],
)
def test_transition_is_written_by_its_owning_service(old: ActionState, new: ActionState, writer: ServiceRole) -> None:
    assert any(edge.old is old and edge.new is new and writer in edge.writers for edge in TRANSITIONS)


def test_gateway_writes_no_transition() -> None:
    assert all(ServiceRole.GATEWAY not in edge.writers for edge in TRANSITIONS)


def test_scheduler_never_sets_outcome_ok() -> None:
    assert all(ActionOutcome.OK not in edge.outcomes for edge in TRANSITIONS if ServiceRole.SCHEDULER in edge.writers)
