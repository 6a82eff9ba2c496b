"""Test the clock of timeouts of actions that share cores."""

import pytest

from arl_core.control.counted_time import CountedTime, CpuSample


def counted(*samples: tuple[float, float, bool], guarantee: int = 100) -> float:
    clock = CountedTime(started_s=0.0, guarantee_milli=guarantee)
    return [clock.add(CpuSample(at_s, cpu_s, runnable)) for at_s, cpu_s, runnable in samples][-1]


def test_waiting_for_a_core_does_not_count() -> None:
    assert counted((1.0, 0.1, True), (2.0, 0.2, True), (10.0, 1.0, True)) == pytest.approx(1.0)


def test_sleep_counts_in_full() -> None:
    assert counted((1.0, 0.0, False), (5.0, 0.0, False)) == pytest.approx(5.0)


def test_program_alone_on_a_core_counts_real_time() -> None:
    assert counted((0.5, 0.5, True), (1.0, 1.0, True)) == pytest.approx(1.0)


def test_threads_on_several_cores_count_at_most_real_time() -> None:
    assert counted((1.0, 4.0, True)) == pytest.approx(1.0)


def test_guarantee_of_several_cores_counts_processor_time_up_to_it() -> None:
    assert counted((1.0, 4.0, True), guarantee=2000) == pytest.approx(2.0)


def test_partly_used_interval_that_ends_in_sleep_counts_in_full() -> None:
    assert counted((1.0, 0.4, False)) == pytest.approx(1.0)


def test_counter_that_went_backwards_counts_nothing() -> None:
    assert counted((1.0, 0.5, True), (2.0, 0.3, True)) == pytest.approx(0.5)


def test_rest_is_the_shortest_real_time_to_the_limit() -> None:
    clock = CountedTime(started_s=0.0, guarantee_milli=2000)
    clock.add(CpuSample(1.0, 1.0, is_runnable=True))
    assert clock.rest_s(3.0) == pytest.approx(1.0)
    assert clock.rest_s(0.5) == 0.0
