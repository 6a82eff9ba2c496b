"""Prediction of the time that a trajectory still needs, from hints of the caller and from earlier passes.

All times are solo times: thinking, and running without waiting for cores. Turns alone predict little (Spearman's rank
correlation 0.2 to 0.4 in recorded agent runs), so a trajectory without a hint and without history has no prediction.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, variance

__all__ = ["RestPrediction", "TrajectoryState", "predict_rest"]

HINT_LOG_DEVIATION = 0.3
"""Assumed standard deviation of the logarithm of a rest that follows from a hint of the caller."""
HISTORY_LOG_DEVIATION = 0.5
"""The same for the total of one earlier pass of the prompt. The spread of several passes replaces it gradually."""
PRIOR_PASSES = 3
"""Weight of that deviation, in number of passes."""
MAX_QUANTILE = 1.0 - 1e-9
MIN_LOG_DEVIATION = 0.1
MIN_PROGRESS = 0.02
"""Progress below which it says nothing about the rest."""
PRIOR_TURNS = 3
"""Weight of the task's mean time per turn, in number of turns."""
MIN_HISTORY_FRACTION = 0.1
"""Least rest, as a fraction of the total of earlier passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryState:
    """The known facts about an open trajectory."""

    turns: int
    """Actions that have ended."""
    solo_s: float
    """Solo seconds so far."""
    thinking_s: float = 0.0
    """Seconds since its last action, if none is open. They are not in `solo_s`."""
    open_turns: int = 0
    """Actions that wait or run."""
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
    left = max(state.open_turns, state.expected_turns - state.turns)
    # Thinking is a part of the next turn. It does not replace the command of that turn.
    rest_s = left * pace_s - min(state.thinking_s, pace_s / 2) if left else 0.0
    return RestPrediction(rest_s, HINT_LOG_DEVIATION)


def _from_progress(state: TrajectoryState, pace_s: float) -> RestPrediction | None:
    if state.progress is None or state.progress < MIN_PROGRESS or state.solo_s <= 0.0:
        return None
    rest_s = state.solo_s * (1.0 - state.progress) / state.progress - state.thinking_s
    return RestPrediction(max(rest_s, MIN_HISTORY_FRACTION * pace_s), HINT_LOG_DEVIATION)


def _from_history(state: TrajectoryState, pace_s: float) -> RestPrediction | None:
    logs = [math.log(total_s) for total_s in state.earlier_s if total_s > 0.0]
    if not logs:
        return None
    mean, deviation = fmean(logs), _log_deviation(logs)
    elapsed_s, least_s = state.solo_s + state.thinking_s, MIN_HISTORY_FRACTION * max(math.exp(mean), pace_s)
    rest_s = max(_median_rest_s(elapsed_s, mean, deviation), least_s)
    # The whole error of the total is in the rest. Relative to a small rest, it is large.
    return RestPrediction(rest_s, deviation * max(1.0, math.exp(mean) / rest_s))


def _log_deviation(logs: Sequence[float]) -> float:
    """Return the deviation of earlier passes, with `HISTORY_LOG_DEVIATION` as that of `PRIOR_PASSES` others."""
    spread = variance(logs) * (len(logs) - 1) if len(logs) > 1 else 0.0
    pooled = (PRIOR_PASSES * HISTORY_LOG_DEVIATION**2 + spread) / (PRIOR_PASSES + len(logs) - 1)
    return max(MIN_LOG_DEVIATION, math.sqrt(pooled))


def _median_rest_s(elapsed_s: float, mean: float, deviation: float) -> float:
    """Return the median rest of a log-normal total that is longer than `elapsed_s`.

    A trajectory that outlasts its history is more likely to be one of the longest. So its rest stays long.
    """
    if elapsed_s <= 0.0:
        return math.exp(mean)
    total = NormalDist(mean, deviation)
    quantile = min((1.0 + total.cdf(math.log(elapsed_s))) / 2, MAX_QUANTILE)
    return math.exp(total.inv_cdf(quantile)) - elapsed_s


def _combine(predictions: Iterable[RestPrediction]) -> RestPrediction | None:
    weights = log_sum = 0.0
    for each in predictions:
        weight = 1.0 / each.log_deviation**2
        weights += weight
        log_sum += weight * math.log(max(each.rest_s, 1e-3))
    if not weights:
        return None
    return RestPrediction(math.exp(log_sum / weights), max(MIN_LOG_DEVIATION, weights**-0.5))
