"""Of what refills, both limits hold: what is held and given back, and what is spent."""

from typing import Any

import pytest

from arl_core.capacity.ledger import ResourceLedger
from arl_core.capacity.rate_limited_ledger import RateLimitedLedger
from arl_core.control.rate_limits import RateLimit

SEARCH = "calls:search"
ONE = {SEARCH: 1}


def a_ledger(*, capacity: int | None = 10, per_s: float = 2.0, burst: int = 4, now: float = 0.0) -> RateLimitedLedger:
    ledger = RateLimitedLedger()
    ledger.now = now
    ledger.set_capacity(1, {"cpu_milli": 1000} | ({} if capacity is None else {SEARCH: capacity}))
    ledger.set_rates(1, {SEARCH: RateLimit(per_s, burst)})
    return ledger


def taken(ledger: RateLimitedLedger, *holders: Any) -> int:
    """Free, once these have taken one each."""
    for holder in holders:
        ledger.allocate(holder, 1, ONE)
    return ledger.available(1)[SEARCH]


class TestTake:
    def test_it_spends_once_however_often_it_is_said(self) -> None:
        assert taken(a_ledger(), "a", "a") == 3

    def test_more_for_the_same_holder_spends_the_difference(self) -> None:
        ledger = a_ledger()
        ledger.allocate("a", 1, ONE)
        ledger.allocate("a", 1, {SEARCH: 3})
        assert (ledger.available(1)[SEARCH], ledger.available_ignoring_rates(1)[SEARCH]) == (1, 7)

    def test_a_release_gives_back_what_was_held_and_no_token(self) -> None:
        ledger = a_ledger()
        taken(ledger, "a", "b")
        assert [ledger.release("a"), ledger.release("a")] == [True, False]
        assert (ledger.available(1)[SEARCH], ledger.available_ignoring_rates(1)[SEARCH]) == (2, 9)

    def test_who_takes_again_after_a_release_spends_again(self) -> None:
        ledger = a_ledger()
        taken(ledger, "a")
        ledger.release("a")
        assert taken(ledger, "a") == 2

    def test_free_is_the_less_of_both(self) -> None:
        ledger = a_ledger(capacity=5)
        assert taken(ledger, *range(4)) == 0
        ledger.refill(60.0)
        assert ledger.available(1)[SEARCH] == 1

    def test_of_a_rate_alone_nothing_is_held(self) -> None:
        ledger = a_ledger(capacity=None)
        assert (taken(ledger, *range(4)), ledger.capacity(1)[SEARCH]) == (0, 4)
        ledger.refill(1.5)
        assert ledger.available(1)[SEARCH] == 3

    def test_nobody_runs_into_debt_for_what_another_leader_granted(self) -> None:
        ledger = a_ledger()
        assert taken(ledger, *range(9)) == 0
        ledger.refill(0.5)
        assert ledger.available(1)[SEARCH] == 1


class TestRefill:
    def test_what_comes_after_it_is_not_free(self) -> None:
        ledger = a_ledger()
        taken(ledger, *range(4))
        ledger.now = 1.5
        assert ledger.available(1)[SEARCH] == 0
        ledger.refill(1.5)
        assert ledger.available(1)[SEARCH] == 3

    def test_what_is_taken_later_than_it_was_looked_at_is_spent_later(self) -> None:
        ledger = a_ledger()
        ledger.now = 1.0
        assert taken(ledger, *range(4)) == 0
        assert ledger.refills_at(1, ONE) == 1.5


class TestSetRates:
    def test_the_same_again_changes_nothing(self) -> None:
        ledger = a_ledger()
        taken(ledger, "a", "b")
        ledger.set_rates(1, {SEARCH: RateLimit(2.0, 4)})
        assert ledger.available(1)[SEARCH] == 2

    @pytest.mark.parametrize(("burst", "free"), [(4, 1), (10, 7), (3, 0), (2, 0)])
    def test_what_was_spent_under_another_rate_stays_spent(self, burst: int, free: int) -> None:
        ledger = a_ledger()
        taken(ledger, *range(3))
        ledger.set_rates(1, {SEARCH: RateLimit(8.0, burst)})
        assert ledger.available(1)[SEARCH] == free
        ledger.refill(0.25)
        assert ledger.available(1)[SEARCH] == min(burst, free + 2, 7)

    def test_one_that_disappears_is_forgotten(self) -> None:
        ledger = a_ledger()
        taken(ledger, *range(4))
        ledger.set_rates(1, {})
        assert ledger.available(1) == {"cpu_milli": 1000, SEARCH: 6}
        assert ledger.available_view(1) is ledger.available_view(1)

    def test_capacity_is_what_can_be_free_at_once(self) -> None:
        assert (a_ledger(burst=4).capacity(1)[SEARCH], a_ledger(burst=40).capacity(1)[SEARCH]) == (4, 10)


class TestLeft:
    def test_of_a_node_without_rates_it_is_what_a_plain_ledger_has(self) -> None:
        ledger = a_ledger()
        ledger.set_capacity(2, ONE)
        left = ledger.available_view(2)
        ledger.allocate("a", 2, ONE)
        assert (left, left is ResourceLedger.available_view(ledger, 2)) == ({SEARCH: 0}, True)


class TestRefillsAt:
    def test_it_is_when_the_tokens_are_there(self) -> None:
        ledger = a_ledger(now=100.0)
        taken(ledger, *range(4))
        assert [ledger.refills_at(1, {SEARCH: count}) for count in (1, 3)] == [100.5, 101.5]

    def test_nobody_waits_for_tokens_that_are_there(self) -> None:
        ledger = a_ledger()
        taken(ledger, *range(3))
        assert ledger.refills_at(1, ONE) is None
        assert ledger.refills_at(2, ONE) is None

    def test_nobody_waits_for_tokens_alone_who_lacks_something_else(self) -> None:
        ledger = a_ledger(capacity=4)
        taken(ledger, *range(4))
        assert ledger.refills_at(1, ONE) is None
        ledger.release(0)
        assert ledger.refills_at(1, ONE) == 0.5
        assert ledger.refills_at(1, {**ONE, "gpu": 1}) is None

    def test_more_than_a_burst_is_never_there(self) -> None:
        assert a_ledger().refills_at(1, {SEARCH: 5}) is None

    def test_of_a_rate_alone_tokens_are_enough(self) -> None:
        ledger = a_ledger(capacity=None)
        taken(ledger, *range(4))
        assert ledger.refills_at(1, ONE) == 0.5
