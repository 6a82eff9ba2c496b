"""The critical trajectories of a step: those that are expected to end last."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

__all__ = ["CRITICAL_FRACTION", "StepTrajectory", "critical_trajectories"]

CRITICAL_FRACTION = 0.95
"""Fraction of the latest projected end from which a trajectory is critical."""

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


def critical_trajectories(trajectories: Mapping[NameT, StepTrajectory], *, cores: int) -> frozenset[NameT]:
    """Return the trajectories whose actions go first, at most one for each core.

    A trajectory without a prediction is never critical. While the step is bound by its work, no trajectory is critical:
    the cores would be busy until all work is done in any order, and others would wait for nothing.
    """
    known = {name: each.rest_s for name, each in trajectories.items() if each.rest_s is not None}
    if not known or cores < 1:
        return frozenset()
    longest_rest_s = max(known.values())
    if longest_rest_s < sum(each.rest_core_s for each in trajectories.values()) / cores:
        return frozenset()
    ends = {name: trajectories[name].elapsed_s + rest_s for name, rest_s in known.items()}
    latest = max(ends.values())
    late = sorted((name for name in ends if ends[name] >= CRITICAL_FRACTION * latest), key=lambda name: -known[name])
    return frozenset(late[:cores])
