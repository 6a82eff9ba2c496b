"""Duration estimates learnt from finished actions, by class and by amount of the elastic resource.

Queue order and degrees of parallelism depend on these figures; correctness never does. Durations are seconds of run
time, without queueing delay.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist, fmean

from arl_core.domain.model import ActionClass, Resources
from arl_core.durations.curves import main_resource
from arl_core.durations.scaling_fit import FittedCurve, RunCounts, RunObservation, fit_curve, robust_mean, useful_amount
from arl_core.durations.shared_demand import CpuUsage

__all__ = [
    "IGNORED_OVERRUN",
    "MIN_STRAGGLER_RUNS",
    "PRIOR_S",
    "DurationEstimates",
    "straggler_limit_s",
]

PRIOR_S = 1.0
"""Prior duration in seconds of an unknown action at its smallest amount."""
RUN_WINDOW = 64
"""Runs remembered per class; older runs are dropped, so estimates follow changes."""
MAX_CLASSES = 10_000
"""Classes remembered; the class without a run for the longest time is evicted first."""
PRIOR_LOG_DEVIATION, PRIOR_LOG_DEVIATION_WEIGHT = 1.0, 2.0
"""Prior standard deviation of the logarithm of durations, and its weight in number of runs."""
MIN_RUN_S = 1e-6
"""Resolution of managers in seconds; a run that was saved and restored is unchanged."""


@dataclass(slots=True)
class _ClassHistory:
    runs: deque[RunObservation] = field(default_factory=lambda: deque(maxlen=RUN_WINDOW))
    curve: FittedCurve | None = None
    """Fitted curve; built on demand and dropped at the next run."""


class DurationEstimates:
    """A `DurationModel` learnt from runs: of the class, else of similar classes, else `PRIOR_S`."""

    def __init__(self) -> None:
        self._classes: OrderedDict[int, _ClassHistory] = OrderedDict()
        self._pooled_means: dict[str, OrderedDict[int, float]] = {}
        """Mean seconds at the smallest amount by class, for each kind and form of elasticity."""
        self._mean_cache: dict[str, float] = {}
        """Cached means of these pools, because unknown classes are looked up most when there are many classes."""
        self._dirty_keys: dict[int, None] = {}

    @property
    def class_count(self) -> int:
        """Return the number of known classes."""
        return len(self._classes)

    def run_count(self, cls: ActionClass) -> int:
        """Return the number of remembered runs of this class."""
        known = self._classes.get(cls.key)
        return len(known.runs) if known is not None else 0

    def has_pooled_estimate(self, cls: ActionClass) -> bool:
        """Return True if an unknown class is estimated from similar classes."""
        return bool(self._pooled_means.get(_pool_key(cls)))

    def seconds(self, cls: ActionClass, amount: int) -> float:
        """Return the mean duration; a straggler counts as at most `OUTLIER_FACTOR` times the median."""
        curve = self._curve_for(cls)
        if curve is None:
            return self._pooled_mean(cls) * _declared_duration(cls, amount)
        known = curve.seconds.get(amount)
        return known if known is not None else curve.base_s * _relative_duration(curve, cls, amount)

    def quantile(self, cls: ActionClass, q: float, amount: int) -> float:
        """Return the duration that a run exceeds with probability 1 - `q`, 0 < q < 1; fewer runs give a larger value.

        With enough runs it is an order statistic, which assumes no distribution. Otherwise it is the quantile of a
        log-normal distribution with uncertain spread.

        Raises ValueError if `q` is not between 0 and 1.
        """
        if not 0.0 < q < 1.0:
            raise ValueError("a quantile must lie between 0 and 1")
        curve = self._curve_for(cls)
        if curve is None:
            width = NormalDist().inv_cdf(q) * PRIOR_LOG_DEVIATION * math.sqrt(2.0)
            return self.seconds(cls, amount) * math.exp(width)
        return _quantile(curve.base_durations, q) * self.seconds(cls, amount) / curve.base_s

    def observe(
        self, cls: ActionClass, *, amount: int, run_s: float, cpu_s: float = 0.0, is_steady: bool = True
    ) -> None:
        """Record an action that ran to its own end, successfully or not. Killed actions must not be recorded."""
        if amount < 0 or run_s < 0:
            return
        known = self._classes.get(cls.key)
        if known is None:
            known = self._classes[cls.key] = _ClassHistory()
            self._evict_oldest()
        self._classes.move_to_end(cls.key)
        known.runs.append(RunObservation(amount, max(round(run_s, 6), MIN_RUN_S), round(cpu_s, 6), is_steady))
        known.curve = None
        self._dirty_keys[cls.key] = None

    def cpu_usage(self, cls: ActionClass) -> CpuUsage | None:
        """Return the mean use of processors of the remembered runs; None if there is none."""
        known = self._classes.get(cls.key)
        if known is None or not known.runs:
            return None
        cpu_s = robust_mean(run.cpu_s for run in known.runs)
        return CpuUsage(len(known.runs), cpu_s, min(1.0, cpu_s / robust_mean(run.run_s for run in known.runs)))

    def run_counts(self, cls: ActionClass) -> RunCounts | None:
        """Return the number of remembered runs, and of those with more than the minimum of the elastic resource."""
        known, elastic = self._classes.get(cls.key), cls.demand.elastic
        if known is None or elastic is None:
            return RunCounts()
        return RunCounts(len(known.runs), sum(run.amount > elastic.amounts[0] for run in known.runs))

    def useful_amount(self, cls: ActionClass) -> int | None:
        """Return the largest amount that runs used completely, as far as known; None if none left cores unused."""
        known, elastic = self._classes.get(cls.key), cls.demand.elastic
        return useful_amount(elastic, known.runs) if known is not None and elastic is not None else None

    def take_changes(self, *, limit: int) -> dict[int, list[list[int]]]:
        """Return the runs by class key, in the form that `restore` takes, of at most `limit` changed classes.

        The returned classes count as unchanged afterwards.
        """
        keys = [key for key, _ in zip(self._dirty_keys, range(limit), strict=False)]
        for key in keys:
            del self._dirty_keys[key]
        return {key: [_encode_run(run) for run in self._classes[key].runs] for key in keys}

    def mark_changed(self, keys: Iterable[int]) -> None:
        """Mark classes as changed because saving them failed."""
        self._dirty_keys |= dict.fromkeys(key for key in keys if key in self._classes)

    def restore(self, saved: Mapping[int, Sequence[Sequence[int]]]) -> None:
        """Load saved runs, oldest class first; classes with runs observed meanwhile are not replaced."""
        since, self._classes = self._classes, OrderedDict()
        for key, runs in saved.items():
            self._classes[key] = _ClassHistory(deque((_decode_run(run) for run in runs), maxlen=RUN_WINDOW))
        for key, known in since.items():
            self._classes[key] = known
            self._classes.move_to_end(key)
        self._evict_oldest()

    def _evict_oldest(self) -> None:
        while len(self._classes) > MAX_CLASSES:
            self._dirty_keys.pop(self._classes.popitem(last=False)[0], None)

    def _curve_for(self, cls: ActionClass) -> FittedCurve | None:
        known = self._classes.get(cls.key)
        if known is None or not known.runs:
            return None
        if known.curve is None:
            known.curve = fit_curve(cls, known.runs)
            self._add_to_pool(cls, known.curve.base_s)
        return known.curve

    def _add_to_pool(self, cls: ActionClass, base_s: float) -> None:
        form = _pool_key(cls)
        alike = self._pooled_means.setdefault(form, OrderedDict())
        self._mean_cache.pop(form, None)
        alike[cls.key] = base_s
        alike.move_to_end(cls.key)
        if len(alike) > RUN_WINDOW:
            alike.popitem(last=False)

    def _pooled_mean(self, cls: ActionClass) -> float:
        form = _pool_key(cls)
        mean = self._mean_cache.get(form)
        if mean is None:
            alike = self._pooled_means.get(form)
            mean = self._mean_cache[form] = robust_mean(alike.values()) if alike else PRIOR_S
        return mean


def _pool_key(cls: ActionClass) -> str:
    elastic = cls.demand.elastic
    return f"{cls.kind} {type(elastic.elasticity).__name__ if elastic is not None else '-'}"


def _declared_duration(cls: ActionClass, amount: int) -> float:
    elastic = cls.demand.elastic
    if elastic is None:
        return 1.0
    return elastic.elasticity.relative_duration(amount, base=elastic.amounts[0])


def _relative_duration(curve: FittedCurve, cls: ActionClass, amount: int) -> float:
    """Return the duration relative to the smallest amount, taken from the next smaller allowed amount."""
    below = [each for each in curve.seconds if each <= amount]
    if not below:
        return _declared_duration(cls, amount) if curve.seconds else 1.0
    return curve.seconds[max(below)] / curve.base_s


def _quantile(base_durations: Sequence[float], q: float) -> float:
    rank = math.ceil(q * (len(base_durations) + 1))
    if rank <= len(base_durations):
        return base_durations[rank - 1]
    logs = [math.log(work) for work in base_durations]
    centre = fmean(logs)
    squares = PRIOR_LOG_DEVIATION_WEIGHT * PRIOR_LOG_DEVIATION**2 + sum((each - centre) ** 2 for each in logs)
    deviation = math.sqrt(squares / (PRIOR_LOG_DEVIATION_WEIGHT + len(logs) - 1) * (1 + 1 / len(logs)))
    return max(base_durations[-1], math.exp(centre + NormalDist().inv_cdf(q) * deviation))


def _encode_run(run: RunObservation) -> list[int]:
    """Return the amount, the run time and processor time in microseconds, and whether the amount was steady."""
    return [run.amount, round(1e6 * run.run_s), round(1e6 * run.cpu_s), int(run.is_steady)]


def _decode_run(run: Sequence[int]) -> RunObservation:
    amount, run_us, cpu_us, steady = run
    return RunObservation(amount, run_us / 1e6, cpu_us / 1e6, bool(steady))


MIN_STRAGGLER_RUNS = 8
"""Runs of a class needed to detect stragglers."""
IGNORED_OVERRUN = 2.0
"""Overrun, as a multiple of the straggler limit, above which forecasts ignore the action's end."""
_LATE_QUANTILE, _MEDIAN_FACTOR = 0.99, 5.0


def straggler_limit_s(estimates: DurationEstimates, cls: ActionClass, resources: Resources) -> float | None:
    """Return the larger of the 0.99 quantile and five times the median; None with too few runs or a mixed class."""
    if cls.is_mixed or estimates.run_count(cls) < MIN_STRAGGLER_RUNS:
        return None
    amount = resources.get(main_resource(cls) or "", 0)
    late_s, usual_s = (estimates.quantile(cls, q, amount) for q in (_LATE_QUANTILE, 0.5))
    return max(late_s, _MEDIAN_FACTOR * usual_s)
