"""The critical trajectories of a step: those that are expected to end last."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

__all__ = ["CRITICAL_FRACTION", "StepTrajectory", "critical_trajectories", "is_work_bound", "late_trajectories"]

CRITICAL_FRACTION = 0.95
"""Fraction of the latest projected end from which a trajectory is critical."""
WORK_BOUND_FRACTION = 0.7
"""Fraction of the time for all remaining work up to which the longest trajectory may wait.

Below 1, because a trajectory does not run as if alone even if its actions go first, and predictions have errors. A
trajectory that waits until both times are equal ends the step late.
"""

NameT = TypeVar("NameT", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrajectory:
    """An open trajectory of a step."""

    elapsed_s: float
    """Seconds since the step began."""
    rest_s: float | None
    """Expected solo seconds until the trajectory ends; None if unknown."""
    rest_core_s: float = 0.0
    """Expected core-seconds that it still needs."""


def critical_trajectories(trajectories: Mapping[NameT, StepTrajectory], *, cores: float) -> frozenset[NameT]:
    """Return the trajectories whose actions go first, at most one for each core.

    A trajectory without a prediction is never critical. While the step is bound by its work, no trajectory is critical:
    the cores would be busy until all work is done in any order, and others would wait for nothing.
    """
    if cores < 1 or is_work_bound(trajectories, cores=cores):
        return frozenset()
    return frozenset(late_trajectories(trajectories)[: int(cores)])


def is_work_bound(trajectories: Mapping[NameT, StepTrajectory], *, cores: float) -> bool:
    """Return True if the cores need clearly longer for all remaining work than the longest trajectory needs alone."""
    longest_rest_s = max((each.rest_s for each in trajectories.values() if each.rest_s is not None), default=0.0)
    return longest_rest_s * cores < WORK_BOUND_FRACTION * sum(each.rest_core_s for each in trajectories.values())


def late_trajectories(trajectories: Mapping[NameT, StepTrajectory]) -> list[NameT]:
    """Return the trajectories that are expected to end last or nearly last, the longest rest first."""
    known = {name: each.rest_s for name, each in trajectories.items() if each.rest_s is not None}
    ends = {name: trajectories[name].elapsed_s + rest_s for name, rest_s in known.items()}
    latest = max(ends.values(), default=0.0)
    return sorted((name for name in ends if ends[name] >= CRITICAL_FRACTION * latest), key=lambda name: -known[name])
