"""Duration curves fitted to the runs of a class, from the declared elasticity and from the use of cores.

Without a declaration, some runs explore: they start with more cores than their minimum although no gain is known.
Otherwise the scheduler would never observe that more cores help. Durations are seconds of run time, without queueing
delay.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import NamedTuple

from arl_core.domain.elasticity import AmdahlScaling, Elasticity, NoScaling
from arl_core.domain.model import ActionClass, ElasticResource

__all__ = [
    "EXPLORE_ONE_IN",
    "OUTLIER_FACTOR",
    "FittedCurve",
    "RunCounts",
    "RunObservation",
    "fit_curve",
    "is_exploration_due",
    "robust_mean",
    "useful_amount",
]

_CORE_MILLI = 1000
OUTLIER_FACTOR = 20.0
"""Cap on a run's duration, as a multiple of the median of its class."""
PRIOR_WEIGHT = 4.0
"""Weight of the declared elasticity, in number of observed runs."""
MIN_SPARE_RUNS = 2
"""Runs that must have left cores unused before the useful amount is capped at the used cores."""
DECLARED_USE_THRESHOLD = 0.75
"""Fraction of the declared core use above which a declared elasticity is believed."""
HELPER_CORES = 0.1
"""Cores that a program uses besides its work, at start-up or in threads that mostly sleep."""
EXPLORE_ONE_IN = 16
"""At most one of this many runs of a class explores, and the first one does."""


class RunCounts(NamedTuple):
    """Runs of one class."""

    runs: int = 0
    wide: int = 0
    """Runs with more than the minimum of the elastic resource."""

    def plus(self, other: "RunCounts") -> "RunCounts":
        """Return the sums of both."""
        return RunCounts(self.runs + other.runs, self.wide + other.wide)


def is_exploration_due(counts: RunCounts) -> bool:
    """Return True if the next run may explore, given the ended and the current runs of its class."""
    return counts.wide * EXPLORE_ONE_IN <= counts.runs


@dataclass(frozen=True, slots=True)
class RunObservation:
    """A run: its amount of the elastic resource, its duration and its processor time."""

    amount: int
    run_s: float
    cpu_s: float = 0.0
    is_steady: bool = True
    """False if the amount changed during the run: `amount` is then the average and core use is ignored."""


@dataclass(frozen=True, slots=True)
class FittedCurve:
    """The fitted curve of a class, from the runs in its window."""

    base_s: float
    """Seconds at the smallest amount."""
    seconds: Mapping[int, float]
    """Seconds by allowed amount; never rising."""
    base_durations: tuple[float, ...]
    """Durations of the runs, scaled to the smallest amount, in rising order."""


def fit_curve(cls: ActionClass, runs: Sequence[RunObservation]) -> FittedCurve:
    elastic = cls.demand.elastic
    if elastic is None:
        works = sorted(run.run_s for run in runs)
        return FittedCurve(robust_mean(works), {}, tuple(works))
    shape = _ScalingFit.fit(elastic, runs)
    works = sorted(run.run_s / shape.relative_duration(run.amount) for run in runs)
    base_s = robust_mean(works)
    modelled = {amount: base_s * shape.relative_duration(amount) for amount in elastic.amounts}
    seconds = _make_monotonic(_blend_observed(modelled, runs))
    scale = seconds[elastic.amounts[0]] / base_s
    return FittedCurve(base_s * scale, seconds, tuple(work * scale for work in works))


@dataclass(frozen=True, slots=True)
class _ScalingFit:
    """The scaling of a class: the declared elasticity, blended with a fit. More runs give the fit more weight."""

    elasticity: Elasticity
    """The declared elasticity; without a declaration, the one that the use of cores shows."""
    base: int
    fraction: float
    """Parallel fraction of the work, fitted by least squares on 1/amount."""
    trust: float
    """Weight of the fit against the declaration: 0..1."""
    useful_amount: int | None

    @classmethod
    def fit(cls, elastic: ElasticResource, runs: Sequence[RunObservation]) -> "_ScalingFit":
        """Fit the declared elasticity of a class to its runs; an undeclared one follows from their use of cores."""
        base = elastic.amounts[0]
        declared = _scaling_of_use(runs) if elastic.is_undeclared else elastic.elasticity
        fraction, trust = _fit_parallel_fraction(_durations_by_amount(runs), base)
        return cls(declared, base, fraction, trust, useful_amount(elastic, runs))

    def relative_duration(self, amount: int) -> float:
        """Return the blended duration with `amount`, relative to the duration with the smallest amount."""
        if self.useful_amount is not None:
            amount = min(amount, max(self.useful_amount, self.base))
        declared = self.elasticity.relative_duration(amount, base=self.base)
        seen = (1.0 - self.fraction) + self.fraction * self.base / amount
        return max((1.0 - self.trust) * declared + self.trust * seen, 1e-9)


def _scaling_of_use(runs: Iterable[RunObservation]) -> Elasticity:
    """Return Amdahl's law with the parallel fraction that the mean use of cores shows.

    A run with k cores takes `(1 - f) + f / k` of its CPU time, so one run with several cores determines f.
    """
    fractions = []
    for run in runs:
        if run.is_steady and run.amount > _CORE_MILLI and run.cpu_s > 0.0:
            used = run.cpu_s / run.run_s
            is_parallel = used > 1.0 + HELPER_CORES
            fractions.append((1.0 - 1.0 / used) / (1.0 - _CORE_MILLI / run.amount) if is_parallel else 0.0)
    fraction = min(1.0, fmean(fractions)) if fractions else 0.0
    return AmdahlScaling(fraction, _CORE_MILLI) if fraction > 0.0 else NoScaling()


def _durations_by_amount(runs: Iterable[RunObservation]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for run in runs:
        if run.is_steady:
            found.setdefault(run.amount, []).append(run.run_s)
    return found


def _fit_parallel_fraction(durations_by_amount: Mapping[int, Sequence[float]], base: int) -> tuple[float, float]:
    """Return the parallel fraction and its weight, which grows with runs at amounts other than the most common one."""
    if len(durations_by_amount) < 2:
        return 0.0, 0.0
    points = [
        (base / amount, robust_mean(durations), len(durations)) for amount, durations in durations_by_amount.items()
    ]
    count = sum(weight for _, _, weight in points)
    x0 = sum(x * weight for x, _, weight in points) / count
    y0 = sum(y * weight for _, y, weight in points) / count
    slope = sum((x - x0) * (y - y0) * weight for x, y, weight in points) / sum(
        (x - x0) ** 2 * weight for x, _, weight in points
    )
    parallel, serial = max(slope, 0.0), max(y0 - slope * x0, 0.0)
    if parallel + serial <= 0.0:
        return 0.0, 0.0
    others = count - max(weight for _, _, weight in points)
    return parallel / (parallel + serial), others / (others + PRIOR_WEIGHT)


def useful_amount(elastic: ElasticResource, runs: Sequence[RunObservation]) -> int | None:
    """Return the least amount that covers the core use of every run; None unless enough runs had more than that.

    A serial part lowers the mean use too. If a run used about as much as its declared elasticity predicts, the
    declaration is believed and the result is None.
    """
    if elastic.resource != "cpu_milli":
        return None
    steady = [run for run in runs if run.is_steady and run.cpu_s > 0.0]
    if not steady or any(
        run.cpu_s / run.run_s >= DECLARED_USE_THRESHOLD * _declared_use(elastic, run.amount) for run in steady
    ):
        return None
    used = 1000 * math.ceil(max(run.cpu_s / run.run_s for run in steady) - HELPER_CORES)
    useful = next((amount for amount in elastic.amounts if amount >= used), elastic.amounts[-1])
    spare = sum(1 for run in steady if run.amount > useful)
    return useful if spare >= MIN_SPARE_RUNS else None


def _declared_use(elastic: ElasticResource, amount: int) -> float:
    """Return the mean core use that the declaration predicts. A table predicts that the smallest amount is used."""
    if isinstance(elastic.elasticity, AmdahlScaling):
        return 1.0 / elastic.elasticity.duration(amount)
    base = elastic.amounts[0]
    return base / 1000 / elastic.elasticity.relative_duration(amount, base=base)


def _blend_observed(modelled: Mapping[int, float], runs: Sequence[RunObservation]) -> dict[int, float]:
    """Blend the model with the mean of the runs at each tried amount; the model weighs `PRIOR_WEIGHT` runs."""
    tried = {amount: durations for amount, durations in _durations_by_amount(runs).items() if amount in modelled}
    seen = {
        amount: (PRIOR_WEIGHT * modelled[amount] + len(durations) * robust_mean(durations))
        / (PRIOR_WEIGHT + len(durations))
        for amount, durations in tried.items()
    }
    return {**modelled, **seen}


def _make_monotonic(seconds: Mapping[int, float]) -> dict[int, float]:
    """Return durations that never rise with the amount and never fall faster than proportionally.

    Violations are noise. The figure of the smaller amount stays because it is the safer one; averaging neighbours would
    move both.
    """
    kept: dict[int, float] = {}
    before: tuple[int, float] | None = None
    for amount in sorted(seconds):
        value = seconds[amount]
        if before is not None:
            value = min(max(value, before[1] * before[0] / amount), before[1])
        kept[amount] = value
        before = (amount, value)
    return kept


def robust_mean(durations: Iterable[float]) -> float:
    values = list(durations)
    longest = OUTLIER_FACTOR * median(values)
    return fmean(min(value, longest) for value in values)
