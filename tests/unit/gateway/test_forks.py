"""Test the requests and the idempotency keys of forks."""

import pytest
from pydantic import ValidationError

from arl_gateway.environments.forks import attempt_keys
from arl_wire.environments.forks import MAX_FORKS, ForkEnvironmentRequest

LONGEST_KEY = "k" * 250


def test_keys_of_an_attempt_are_distinct_and_repeatable() -> None:
    keys = attempt_keys(LONGEST_KEY, 0, MAX_FORKS)
    assert keys == attempt_keys(LONGEST_KEY, 0, MAX_FORKS)
    assert len(set(keys)) == MAX_FORKS + 1
    assert max(len(key) for key in keys if key is not None) <= 250


def test_keys_of_other_attempts_and_requests_differ() -> None:
    first, second, other = attempt_keys("a", 0, 3), attempt_keys("a", 1, 3), attempt_keys("b", 0, 3)
    assert not set(first) & set(second)
    assert not set(first) & set(other)


def test_request_without_key_gives_no_keys() -> None:
    assert attempt_keys(None, 0, 2) == [None, None, None]


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c"], ["a", "a"]])
def test_names_that_do_not_match_the_count_are_refused(names: list[str]) -> None:
    with pytest.raises(ValidationError, match="trajectories"):
        ForkEnvironmentRequest(count=2, trajectories=names)


@pytest.mark.parametrize("count", [0, MAX_FORKS + 1])
def test_count_out_of_range_is_refused(count: int) -> None:
    with pytest.raises(ValidationError, match="count"):
        ForkEnvironmentRequest(count=count)
