"""A rate-limited resource has two limits: allocations that are released, and tokens that are spent."""

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
    """Allocate one unit for each holder and return the free amount."""
    for holder in holders:
        ledger.allocate(holder, 1, ONE)
    return ledger.available(1)[SEARCH]


class TestAllocate:
    def test_repeated_allocation_spends_one_token(self) -> None:
        assert taken(a_ledger(), "a", "a") == 3

    def test_larger_allocation_of_same_holder_spends_only_difference(self) -> None:
        ledger = a_ledger()
        ledger.allocate("a", 1, ONE)
        ledger.allocate("a", 1, {SEARCH: 3})
        assert (ledger.available(1)[SEARCH], ledger.available_ignoring_rates(1)[SEARCH]) == (1, 7)

    def test_release_frees_allocation_but_returns_no_token(self) -> None:
        ledger = a_ledger()
        taken(ledger, "a", "b")
        assert [ledger.release("a"), ledger.release("a")] == [True, False]
        assert (ledger.available(1)[SEARCH], ledger.available_ignoring_rates(1)[SEARCH]) == (2, 9)

    def test_allocation_after_release_spends_another_token(self) -> None:
        ledger = a_ledger()
        taken(ledger, "a")
        ledger.release("a")
        assert taken(ledger, "a") == 2

    def test_available_amount_is_minimum_of_both_limits(self) -> None:
        ledger = a_ledger(capacity=5)
        assert taken(ledger, *range(4)) == 0
        ledger.refill(60.0)
        assert ledger.available(1)[SEARCH] == 1

    def test_resource_with_only_a_rate_tracks_no_allocations(self) -> None:
        ledger = a_ledger(capacity=None)
        assert (taken(ledger, *range(4)), ledger.capacity(1)[SEARCH]) == (0, 4)
        ledger.refill(1.5)
        assert ledger.available(1)[SEARCH] == 3

    def test_grants_of_another_leader_cause_no_token_debt(self) -> None:
        ledger = a_ledger()
        assert taken(ledger, *range(9)) == 0
        ledger.refill(0.5)
        assert ledger.available(1)[SEARCH] == 1


class TestRefill:
    def test_tokens_after_last_refill_are_not_available(self) -> None:
        ledger = a_ledger()
        taken(ledger, *range(4))
        ledger.now = 1.5
        assert ledger.available(1)[SEARCH] == 0
        ledger.refill(1.5)
        assert ledger.available(1)[SEARCH] == 3

    def test_tokens_are_spent_at_allocation_time(self) -> None:
        ledger = a_ledger()
        ledger.now = 1.0
        assert taken(ledger, *range(4)) == 0
        assert ledger.refills_at(1, ONE) == 1.5


class TestSetRates:
    def test_setting_same_rates_changes_nothing(self) -> None:
        ledger = a_ledger()
        taken(ledger, "a", "b")
        ledger.set_rates(1, {SEARCH: RateLimit(2.0, 4)})
        assert ledger.available(1)[SEARCH] == 2

    @pytest.mark.parametrize(("burst", "free"), [(4, 1), (10, 7), (3, 0), (2, 0)])
    def test_spent_tokens_stay_spent_after_rate_change(self, burst: int, free: int) -> None:
        ledger = a_ledger()
        taken(ledger, *range(3))
        ledger.set_rates(1, {SEARCH: RateLimit(8.0, burst)})
        assert ledger.available(1)[SEARCH] == free
        ledger.refill(0.25)
        assert ledger.available(1)[SEARCH] == min(burst, free + 2, 7)

    def test_removed_rate_is_forgotten(self) -> None:
        ledger = a_ledger()
        taken(ledger, *range(4))
        ledger.set_rates(1, {})
        assert ledger.available(1) == {"cpu_milli": 1000, SEARCH: 6}
        assert ledger.available_view(1) is ledger.available_view(1)

    def test_capacity_is_limited_by_burst(self) -> None:
        assert (a_ledger(burst=4).capacity(1)[SEARCH], a_ledger(burst=40).capacity(1)[SEARCH]) == (4, 10)


class TestAvailableView:
    def test_node_without_rates_uses_plain_ledger_view(self) -> None:
        ledger = a_ledger()
        ledger.set_capacity(2, ONE)
        left = ledger.available_view(2)
        ledger.allocate("a", 2, ONE)
        assert (left, left is ResourceLedger.available_view(ledger, 2)) == ({SEARCH: 0}, True)


class TestRefillsAt:
    def test_refill_time_is_when_enough_tokens_exist(self) -> None:
        ledger = a_ledger(now=100.0)
        taken(ledger, *range(4))
        assert [ledger.refills_at(1, {SEARCH: count}) for count in (1, 3)] == [100.5, 101.5]

    def test_available_tokens_need_no_refill_time(self) -> None:
        ledger = a_ledger()
        taken(ledger, *range(3))
        assert ledger.refills_at(1, ONE) is None
        assert ledger.refills_at(2, ONE) is None

    def test_missing_other_resource_gives_no_refill_time(self) -> None:
        ledger = a_ledger(capacity=4)
        taken(ledger, *range(4))
        assert ledger.refills_at(1, ONE) is None
        ledger.release(0)
        assert ledger.refills_at(1, ONE) == 0.5
        assert ledger.refills_at(1, {**ONE, "gpu": 1}) is None

    def test_demand_above_burst_has_no_refill_time(self) -> None:
        assert a_ledger().refills_at(1, {SEARCH: 5}) is None

    def test_resource_with_only_a_rate_has_refill_time(self) -> None:
        ledger = a_ledger(capacity=None)
        taken(ledger, *range(4))
        assert ledger.refills_at(1, ONE) == 0.5
