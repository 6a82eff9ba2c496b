"""Test predictions of trajectories, and the choice of critical ones."""

import pytest

from arl_core.steps.critical import StepTrajectory, critical_trajectories
from arl_core.steps.prediction import TrajectoryState, predict_rest


def rest_s(**state: object) -> float:
    found = predict_rest(TrajectoryState(**({"turns": 5, "solo_s": 10.0} | state)), turn_s=2.0)  # type: ignore[arg-type]
    assert found is not None
    return found.rest_s


class TestPrediction:
    def test_turns_alone_predict_nothing(self) -> None:
        assert predict_rest(TrajectoryState(turns=30, solo_s=100.0), turn_s=2.0) is None

    def test_expected_turns_give_the_rest_at_the_pace_of_the_trajectory(self) -> None:
        assert rest_s(expected_turns=15) == pytest.approx(10 * 2.0)
        assert rest_s(expected_turns=15, solo_s=26.0) == pytest.approx(10 * 4.0)

    def test_trajectory_beyond_its_expected_turns_needs_its_open_actions_only(self) -> None:
        assert rest_s(expected_turns=3, open_turns=1) == pytest.approx(2.0)
        assert rest_s(expected_turns=5) == pytest.approx(0.001)

    def test_thinking_is_a_part_of_the_next_turn(self) -> None:
        assert rest_s(expected_turns=15, thinking_s=0.5) == pytest.approx(10 * 2.0 - 0.5)
        assert rest_s(expected_turns=15, thinking_s=50.0) == pytest.approx(10 * 2.0 - 1.0)

    def test_progress_gives_the_rest(self) -> None:
        assert rest_s(progress=0.25) == pytest.approx(30.0)

    def test_no_progress_yet_says_nothing(self) -> None:
        assert predict_rest(TrajectoryState(turns=1, solo_s=1.0, progress=0.0), turn_s=2.0) is None

    def test_history_of_the_prompt_gives_the_rest(self) -> None:
        assert rest_s(earlier_s=(40.0, 40.0)) == pytest.approx(30.0, rel=0.02)
        assert rest_s(solo_s=0.0, earlier_s=(20.0, 80.0)) == pytest.approx(40.0)

    def test_trajectory_that_outlasts_its_history_is_expected_to_last_long(self) -> None:
        rests = [rest_s(solo_s=solo_s, earlier_s=(40.0,)) for solo_s in (20.0, 40.0, 80.0)]
        assert rests == pytest.approx([22.1, 16.1, 15.2], rel=0.02)

    def test_passes_of_different_length_say_less_about_the_rest(self) -> None:
        deviations = []
        for passes in ((40.0, 40.0, 40.0), (40.0,), (10.0, 40.0, 160.0)):
            found = predict_rest(TrajectoryState(turns=0, solo_s=0.0, earlier_s=passes), turn_s=2.0)
            assert found is not None
            deviations.append(found.log_deviation)
        assert deviations == sorted(deviations)
        assert deviations[1] == pytest.approx(0.5)

    def test_trajectory_far_beyond_its_history_has_a_prediction(self) -> None:
        assert rest_s(solo_s=1e9, earlier_s=(0.001,)) >= 0.0002

    def test_sources_are_combined_with_less_error_than_each(self) -> None:
        alone = predict_rest(TrajectoryState(turns=5, solo_s=10.0, expected_turns=15), turn_s=2.0)
        both = predict_rest(TrajectoryState(turns=5, solo_s=10.0, expected_turns=15, progress=0.25), turn_s=2.0)
        assert alone is not None
        assert both is not None
        assert 20.0 < both.rest_s < 30.0
        assert both.log_deviation < alone.log_deviation


def a_trajectory(rest_s: float | None, *, elapsed_s: float = 10.0, core_s: float = 0.1) -> StepTrajectory:
    return StepTrajectory(elapsed_s=elapsed_s, rest_s=rest_s, rest_core_s=core_s)


class TestCritical:
    def test_last_trajectory_is_critical(self) -> None:
        assert critical_trajectories({"a": a_trajectory(5), "b": a_trajectory(60)}, cores=2) == {"b"}

    def test_at_most_one_trajectory_per_core_is_critical(self) -> None:
        many = {number: a_trajectory(60 + number / 10) for number in range(10)}
        assert critical_trajectories(many, cores=2) == {8, 9}

    def test_no_trajectory_is_critical_while_the_step_is_bound_by_its_work(self) -> None:
        many = {number: a_trajectory(10, core_s=8) for number in range(4)}
        assert critical_trajectories(many, cores=2) == frozenset()
        assert critical_trajectories(many, cores=4) != frozenset()

    def test_longest_trajectory_goes_first_before_it_is_the_only_bound(self) -> None:
        trajectories = {"long": a_trajectory(10, core_s=5), "short": a_trajectory(1, core_s=20)}
        assert critical_trajectories(trajectories, cores=2) == {"long"}

    def test_unknown_trajectory_is_not_critical(self) -> None:
        assert critical_trajectories({"a": a_trajectory(None), "b": a_trajectory(1)}, cores=1) == {"b"}
        assert critical_trajectories({"a": a_trajectory(None)}, cores=1) == frozenset()
