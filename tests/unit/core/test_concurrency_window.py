"""How many calls at once an endpoint is taken to bear."""

import pytest

from arl_core.control.rate_limits import ConcurrencyWindow


def test_it_is_halved_once_for_all_that_was_under_way_and_again_for_what_was_sent_since() -> None:
    window = ConcurrencyWindow(16)
    for sent in (1.0, 1.5, 2.0):
        window.throttled(sent=sent, now=2.5)
    assert window.size == 8
    window.throttled(sent=3.0, now=3.5)
    assert window.size == 4


def test_at_least_one_call_is_always_tried() -> None:
    window = ConcurrencyWindow(2)
    for now in range(1, 9):
        window.throttled(sent=now, now=now + 0.5)
    assert window.size == 1


def test_each_second_of_success_adds_one_until_all_are_back() -> None:
    window = ConcurrencyWindow(8)
    window.throttled(sent=0.0, now=0.0)
    for tenth in range(1, 26):
        window.responded(tenth / 10)
    assert window.size == 6
    for second in range(3, 60):
        window.responded(float(second))
    assert window.size == 8


def test_a_pause_is_no_success() -> None:
    window = ConcurrencyWindow(8)
    window.throttled(sent=0.0, now=0.0)
    window.responded(3600.0)
    assert window.size == 5


def test_a_clock_that_stands_still_adds_nothing() -> None:
    window = ConcurrencyWindow(8)
    window.throttled(sent=0.0, now=5.0)
    for _ in range(100):
        window.responded(5.0)
    assert window.size == 4


def test_none_at_once_is_no_window() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ConcurrencyWindow(0)
