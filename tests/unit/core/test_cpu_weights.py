"""Test the kernel weights of actions that share cores."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl_core.control.cpu_weights import CpuShareState, CpuWeightRange, cpu_weights, remaining_cpu_s

V2 = CpuWeightRange(1, 10_000, per_core=1000)


def a_share(
    expected_s: float = 1.0, *, used_s: float = 0.0, guarantee: int = 100, critical: bool = False
) -> CpuShareState:
    return CpuShareState(guarantee_milli=guarantee, expected_cpu_s=expected_s, used_cpu_s=used_s, is_critical=critical)


def test_short_action_gets_more_than_a_long_one() -> None:
    found = cpu_weights({"short": a_share(0.1), "long": a_share(100.0)}, cores=2, weights=V2)
    assert found == {"short": pytest.approx(1000 * (0.1 + 1.8 * 0.849), rel=0.01), "long": pytest.approx(372, rel=0.01)}


def test_equal_actions_have_equal_weights() -> None:
    assert cpu_weights({1: a_share(), 2: a_share()}, cores=4, weights=V2) == {1: 2000, 2: 2000}


def test_critical_action_gets_eight_times_the_surplus() -> None:
    found = cpu_weights({1: a_share(guarantee=0), 2: a_share(guarantee=0, critical=True)}, cores=2, weights=V2)
    assert found[2] / found[1] == pytest.approx(8, rel=0.01)


def test_default_guarantees_of_many_actions_leave_most_cores_to_the_preference() -> None:
    running = {
        number: CpuShareState(guarantee_milli=100, expected_cpu_s=1.0, is_declared=False) for number in range(20)
    }
    running[20] = replace(running[0], is_critical=True)
    found = cpu_weights(running, cores=2, weights=V2)
    assert found[20] / found[0] > 5


def test_default_guarantees_do_not_reduce_declared_ones() -> None:
    running = {
        number: CpuShareState(guarantee_milli=100, expected_cpu_s=0.01, is_declared=False) for number in range(9)
    }
    running[9] = a_share(1000.0, guarantee=1500)
    found = cpu_weights(running, cores=2, weights=V2)
    assert found[9] >= 1500


def test_full_guarantees_leave_no_preference() -> None:
    found = cpu_weights({1: a_share(0.1, guarantee=1000), 2: a_share(100.0, guarantee=1000)}, cores=2, weights=V2)
    assert found == {1: 1000, 2: 1000}


def test_action_past_its_estimate_is_expected_to_need_half_of_its_use_again() -> None:
    assert remaining_cpu_s(a_share(1.0, used_s=0.4)) == pytest.approx(0.6)
    assert remaining_cpu_s(a_share(1.0, used_s=10.0)) == pytest.approx(5.0)
    assert remaining_cpu_s(a_share(0.0)) == 0.05


def test_weights_on_shared_cores_add_up_to_those_of_exclusive_cores() -> None:
    running = {number: a_share(0.1 * number) for number in range(1, 13)}
    assert sum(cpu_weights(running, cores=3, weights=V2).values()) == pytest.approx(V2.of_cores(3), abs=6)


def test_ratio_of_weights_is_bounded() -> None:
    found = cpu_weights({1: a_share(0.0, guarantee=0), 2: a_share(1e16, guarantee=0)}, cores=4, weights=V2)
    assert found[1] / found[2] == pytest.approx(700, rel=0.1)


def test_no_running_action_needs_no_weight() -> None:
    assert cpu_weights({}, cores=2, weights=V2) == {}


states = st.builds(
    CpuShareState,
    guarantee_milli=st.integers(0, 1000),
    expected_cpu_s=st.floats(0.0, 1e5),
    used_cpu_s=st.floats(0.0, 1e5),
    is_critical=st.booleans(),
)


@given(st.lists(states, min_size=1, max_size=40), st.sampled_from([V2, CpuWeightRange(2, 262_144, 1024)]))
def test_each_action_gets_its_guarantee_if_all_guarantees_fit(
    running: list[CpuShareState], weights: CpuWeightRange
) -> None:
    cores = max(1.0, sum(each.guarantee_milli for each in running) / 1000)
    found = cpu_weights(dict(enumerate(running)), cores=cores, weights=weights)
    assert all(weights.least <= weight <= weights.most for weight in found.values())
    for number, each in enumerate(running):
        share = cores * found[number] / sum(found.values())
        assert share >= 0.93 * each.guarantee_milli / 1000 - 1e-3 * cores
