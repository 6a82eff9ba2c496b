"""A sender that keeps a safety margin stays within the rate limit at the receiver."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl_core.control.rate_limits import RateLimit, TokenBucket, rate_at_sender

LATE_S = 0.05


@given(
    per_s=st.floats(1, 400),
    more=st.integers(1, 30),
    wanted=st.lists(st.tuples(st.sampled_from([0.0, 0.0, 0.0, 0.01, 0.3]), st.floats(0, LATE_S)), max_size=150),
)
def test_delayed_arrivals_stay_within_receiver_rate(per_s: float, more: int, wanted: list[tuple[float, float]]) -> None:
    rate = RateLimit(per_s, math.ceil(per_s * LATE_S) + more)
    ours, theirs = (TokenBucket(each, now=0.0) for each in (rate_at_sender(rate, max_delay_s=LATE_S), rate))
    now, arrivals = 0.0, list[float]()
    for pause_s, late_s in wanted:
        now = ours.available_at(1, now=now + pause_s)
        ours.take(1, now=now)
        arrivals.append(now + late_s)
    for arrived in sorted(arrivals):
        assert theirs.available(arrived + 1e-6) >= 1
        theirs.take(1, now=arrived)


def test_sender_rate_takes_margin_from_burst_then_rate() -> None:
    assert rate_at_sender(RateLimit(40, 20), max_delay_s=LATE_S) == RateLimit(40, 18)
    assert rate_at_sender(RateLimit(1, 10), max_delay_s=LATE_S) == RateLimit(1, 9)
    assert rate_at_sender(RateLimit(10, 1), max_delay_s=LATE_S) == RateLimit(9.5, 1)
    slow = rate_at_sender(RateLimit(100, 5), max_delay_s=LATE_S)
    assert (slow.per_s, slow.burst) == (pytest.approx(95), 1)
