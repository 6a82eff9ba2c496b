"""Prediction of the time that a trajectory still needs, from hints of the caller and from earlier passes.

All times are solo times: thinking, and running without waiting for cores. Turns alone predict little (Spearman's rank
correlation 0.2 to 0.4 in recorded agent runs), so a trajectory without a hint and without history has no prediction.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

__all__ = ["RestPrediction", "TrajectoryState", "predict_rest"]

HINT_LOG_DEVIATION = 0.3
"""Assumed standard deviation of the logarithm of a rest that follows from a hint of the caller."""
HISTORY_LOG_DEVIATION = 0.5
"""The same for one earlier pass of the prompt; several passes replace it by their own spread."""
MIN_LOG_DEVIATION = 0.1
MIN_PROGRESS = 0.02
"""Progress below which it says nothing about the rest."""
PRIOR_TURNS = 3
"""Weight of the task's mean time per turn, in number of turns."""
MIN_HISTORY_FRACTION = 0.1
"""Least rest, as a fraction of the total of earlier passes; a trajectory that outlasts them ends at some time later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryState:
    """The known facts about an open trajectory."""

    turns: int
    """Actions that have ended."""
    solo_s: float
    """Solo seconds so far."""
    expected_turns: int | None = None
    """Hint: number of actions of the whole trajectory."""
    progress: float | None = None
    """Hint: completed fraction of the trajectory, from 0 to 1."""
    earlier_s: Sequence[float] = ()
    """Solo seconds of whole trajectories of the same prompt in earlier passes."""


@dataclass(frozen=True, slots=True)
class RestPrediction:
    """A prediction of the rest of a trajectory."""

    rest_s: float
    """Expected solo seconds until its end."""
    log_deviation: float
    """Standard deviation of the logarithm of the rest."""


def predict_rest(state: TrajectoryState, *, turn_s: float) -> RestPrediction | None:
    """Predict the rest of a trajectory; None if there is neither a hint nor history.

    Several sources are combined as log-normal values, each with the inverse of its variance as weight.

    Args:
        state: The trajectory.
        turn_s: Mean solo seconds of a turn of its task.
    """
    pace_s = (PRIOR_TURNS * turn_s + state.solo_s) / (PRIOR_TURNS + state.turns)
    return _combine(
        each
        for each in (_from_turns(state, pace_s), _from_progress(state, pace_s), _from_history(state, pace_s))
        if each is not None
    )


def _from_turns(state: TrajectoryState, pace_s: float) -> RestPrediction | None:
    if state.expected_turns is None:
        return None
    left = max(1, state.expected_turns - state.turns)
    return RestPrediction(left * pace_s, HINT_LOG_DEVIATION)


def _from_progress(state: TrajectoryState, pace_s: float) -> RestPrediction | None:
    if state.progress is None or state.progress < MIN_PROGRESS or state.solo_s <= 0.0:
        return None
    rest_s = state.solo_s * (1.0 - state.progress) / state.progress
    return RestPrediction(max(rest_s, MIN_HISTORY_FRACTION * pace_s), HINT_LOG_DEVIATION)


def _from_history(state: TrajectoryState, pace_s: float) -> RestPrediction | None:
    logs = [math.log(total_s) for total_s in state.earlier_s if total_s > 0.0]
    if not logs:
        return None
    total_s = math.exp(fmean(logs))
    rest_s = max(total_s - state.solo_s, MIN_HISTORY_FRACTION * total_s, MIN_HISTORY_FRACTION * pace_s)
    deviation = stdev(logs) if len(logs) > 1 else HISTORY_LOG_DEVIATION
    # The whole error of the total is in the rest. Relative to a small rest, it is large.
    return RestPrediction(rest_s, max(MIN_LOG_DEVIATION, deviation) * max(1.0, total_s / rest_s))


def _combine(predictions: Iterable[RestPrediction]) -> RestPrediction | None:
    weights = log_sum = 0.0
    for each in predictions:
        weight = 1.0 / each.log_deviation**2
        weights += weight
        log_sum += weight * math.log(max(each.rest_s, 1e-3))
    if not weights:
        return None
    return RestPrediction(math.exp(log_sum / weights), max(MIN_LOG_DEVIATION, weights**-0.5))
