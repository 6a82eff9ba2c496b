import pytest

from arl_core.states import EDGES, Outcome, Role, State


def test_a_settled_action_never_changes_again() -> None:
    assert all(edge.old is not State.SETTLED for edge in EDGES)


def test_every_state_is_reached_and_every_outcome_can_be_given() -> None:
    assert {edge.new for edge in EDGES} == set(State)
    assert set().union(*(edge.outcomes for edge in EDGES)) == set(Outcome)


def test_only_settling_gives_an_outcome() -> None:
    assert all(bool(edge.outcomes) == (edge.new is State.SETTLED) for edge in EDGES)


@pytest.mark.parametrize(
    ("old", "new", "writer"),
    [
        (State.QUEUED, State.GRANTED, Role.SCHEDULER),
        (State.GRANTED, State.RUNNING, Role.CPU),
        (State.RUNNING, State.SETTLED, Role.CPU),
        (State.GRANTED, State.QUEUED, Role.CPU),
        (State.GRANTED, State.QUEUED, Role.SCHEDULER),
    ],
)
def test_the_edges_of_a_life_belong_to_who_owns_them(old: State, new: State, writer: Role) -> None:
    assert any(edge.old is old and edge.new is new and writer in edge.writers for edge in EDGES)


def test_the_gateway_writes_no_edge() -> None:
    assert all(Role.GATEWAY not in edge.writers for edge in EDGES)


def test_success_is_never_the_schedulers_word() -> None:
    assert all(Outcome.OK not in edge.outcomes for edge in EDGES if Role.SCHEDULER in edge.writers)
