"""The concurrency window: the number of simultaneous calls that an endpoint accepts."""

import pytest

from arl_core.control.rate_limits import ConcurrencyWindow


def test_throttling_halves_window_once_for_calls_already_in_flight() -> None:
    window = ConcurrencyWindow(16)
    for sent in (1.0, 1.5, 2.0):
        window.throttled(sent=sent, now=2.5)
    assert window.size == 8
    window.throttled(sent=3.0, now=3.5)
    assert window.size == 4


def test_throttled_window_never_shrinks_below_one() -> None:
    window = ConcurrencyWindow(2)
    for now in range(1, 9):
        window.throttled(sent=now, now=now + 0.5)
    assert window.size == 1


def test_window_grows_one_per_successful_second_up_to_limit() -> None:
    window = ConcurrencyWindow(8)
    window.throttled(sent=0.0, now=0.0)
    for tenth in range(1, 26):
        window.responded(tenth / 10)
    assert window.size == 6
    for second in range(3, 60):
        window.responded(float(second))
    assert window.size == 8


def test_idle_time_grows_window_by_only_one() -> None:
    window = ConcurrencyWindow(8)
    window.throttled(sent=0.0, now=0.0)
    window.responded(3600.0)
    assert window.size == 5


def test_window_does_not_grow_while_clock_stands_still() -> None:
    window = ConcurrencyWindow(8)
    window.throttled(sent=0.0, now=5.0)
    for _ in range(100):
        window.responded(5.0)
    assert window.size == 4


def test_window_of_zero_is_rejected() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ConcurrencyWindow(0)
