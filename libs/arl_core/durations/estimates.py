"""How long actions take, learnt from those that ended: by class and by how much of the elastic resource they had.

Orders and widths follow these figures, correctness never does. Seconds of execution, without waiting.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist, fmean, median

from arl_core.domain.elasticity import Elasticity
from arl_core.domain.model import ActionClass, ElasticResource, Resources
from arl_core.durations.curves import main_resource

__all__ = [
    "IGNORED_OVERRUN",
    "MIN_STRAGGLER_RUNS",
    "PRIOR_S",
    "DurationEstimates",
    "RunObservation",
    "straggler_limit_s",
]


PRIOR_S = 1.0
"""Of an action of which nothing is known, with its smallest amount."""
RUN_WINDOW = 64
"""Runs of a class that are remembered: what changes is forgotten with the last of them."""
MAX_CLASSES = 10_000
"""Classes that are remembered; the one that was seen longest ago goes first."""
OUTLIER_FACTOR = 20.0
"""A run counts as no longer than so many times the median of its class."""
PRIOR_WEIGHT = 4.0
"""What was declared weighs as many runs, beside those that were seen."""
PRIOR_LOG_DEVIATION, PRIOR_LOG_DEVIATION_WEIGHT = 1.0, 2.0
"""Standard deviation of the logarithm of durations, and the number of runs that this assumption weighs."""
MIN_RUN_S = 1e-6
"""What managers measure in; a run that was kept and read again is the same."""
MIN_SPARE_RUNS = 2
"""Runs that must have left cores unused before no more than they used count as useful."""
DECLARED_USE_THRESHOLD = 0.75
"""Who used so much of what its declared elasticity says is taken to be as it says."""
HELPER_CORES = 0.1
"""Cores that a program uses beside its work, at its start or in threads that mostly sleep."""


@dataclass(frozen=True, slots=True)
class RunObservation:
    """One run: with how much of the elastic resource, for how long, and with how much processor time."""

    amount: int
    run_s: float
    cpu_s: float = 0.0
    is_steady: bool = True
    """False where the amount changed meanwhile: `amount` is what it had on average, and its use says nothing."""


@dataclass(slots=True)
class _ClassHistory:
    runs: deque[RunObservation] = field(default_factory=lambda: deque(maxlen=RUN_WINDOW))
    curve: "_FittedCurve | None" = None
    """Made when it is asked for, until the next run."""


@dataclass(frozen=True, slots=True)
class _FittedCurve:
    """A class as its window shows it."""

    base_s: float
    """With the smallest amount."""
    seconds: Mapping[int, float]
    """By amount, for those that the class may have; never rising."""
    base_durations: tuple[float, ...]
    """Durations of the runs, each as it would have been with the smallest amount, in rising order."""


class DurationEstimates:
    """Answers `arl_core.capacity.snapshot.Durations`. A class of its own, else what is like it, else `PRIOR_S`."""

    def __init__(self) -> None:
        self._classes: OrderedDict[int, _ClassHistory] = OrderedDict()
        self._pooled_means: dict[str, OrderedDict[int, float]] = {}
        """Of the classes of a kind whose elasticity has the same form: the mean of each, with its smallest amount."""
        self._mean_cache: dict[str, float] = {}
        """Of those, as long as none changes: what is unknown is asked for most where classes are many."""
        self._dirty_keys: dict[int, None] = {}

    @property
    def class_count(self) -> int:
        """How many are known."""
        return len(self._classes)

    def run_count(self, cls: ActionClass) -> int:
        """Of this very class, that are remembered."""
        known = self._classes.get(cls.key)
        return len(known.runs) if known is not None else 0

    def has_pooled_estimate(self, cls: ActionClass) -> bool:
        """Whether an unknown class is expected to be as others that are like it."""
        return bool(self._pooled_means.get(_pool_key(cls)))

    def seconds(self, cls: ActionClass, amount: int) -> float:
        """The mean, in which a straggler counts as `OUTLIER` usual ones at most."""
        curve = self._curve_for(cls)
        if curve is None:
            return self._pooled_mean(cls) * _declared_duration(cls, amount)
        known = curve.seconds.get(amount)
        return known if known is not None else curve.base_s * _relative_duration(curve, cls, amount)

    def quantile(self, cls: ActionClass, q: float, amount: int) -> float:
        """What a run exceeds with probability 1 - `q`, 0 < q < 1; the wider of the mean, the fewer runs were seen.

        With enough runs an order statistic, which assumes no distribution; else that of a log-normal one whose
        spread is uncertain too.
        """
        if not 0.0 < q < 1.0:
            raise ValueError("a quantile lies between 0 and 1")
        curve = self._curve_for(cls)
        if curve is None:
            width = NormalDist().inv_cdf(q) * PRIOR_LOG_DEVIATION * math.sqrt(2.0)
            return self.seconds(cls, amount) * math.exp(width)
        return _quantile(curve.base_durations, q) * self.seconds(cls, amount) / curve.base_s

    def observe(
        self, cls: ActionClass, *, amount: int, run_s: float, cpu_s: float = 0.0, is_steady: bool = True
    ) -> None:
        """An action ran to its own end, well or badly. What was killed says nothing and must not come here."""
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

    def useful_amount(self, cls: ActionClass) -> int | None:
        """The largest amount of which runs used all, as far as was seen; None where none left anything unused."""
        known, elastic = self._classes.get(cls.key), cls.demand.elastic
        return _useful_amount(elastic, known.runs) if known is not None and elastic is not None else None

    def take_changes(self, *, limit: int) -> dict[int, list[list[int]]]:
        """By class key what `restore` takes, of at most so many classes that changed since this was last asked."""
        keys = [key for key, _ in zip(self._dirty_keys, range(limit), strict=False)]
        for key in keys:
            del self._dirty_keys[key]
        return {key: [_encode_run(run) for run in self._classes[key].runs] for key in keys}

    def mark_changed(self, keys: Iterable[int]) -> None:
        """These could not be kept."""
        self._dirty_keys |= dict.fromkeys(key for key in keys if key in self._classes)

    def restore(self, saved: Mapping[int, Sequence[Sequence[int]]]) -> None:
        """What an earlier holder of this place wrote, the longest ago first; what was seen since is kept."""
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

    def _curve_for(self, cls: ActionClass) -> _FittedCurve | None:
        known = self._classes.get(cls.key)
        if known is None or not known.runs:
            return None
        if known.curve is None:
            known.curve = _fit_curve(cls, known.runs)
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
            mean = self._mean_cache[form] = _mean(alike.values()) if alike else PRIOR_S
        return mean


def _pool_key(cls: ActionClass) -> str:
    elastic = cls.demand.elastic
    return f"{cls.kind} {type(elastic.elasticity).__name__ if elastic is not None else '-'}"


def _declared_duration(cls: ActionClass, amount: int) -> float:
    elastic = cls.demand.elastic
    if elastic is None:
        return 1.0
    return elastic.elasticity.relative_duration(amount, base=elastic.amounts[0])


def _fit_curve(cls: ActionClass, runs: Sequence[RunObservation]) -> _FittedCurve:
    elastic = cls.demand.elastic
    if elastic is None:
        works = sorted(run.run_s for run in runs)
        return _FittedCurve(_mean(works), {}, tuple(works))
    shape = _ScalingFit.fit(elastic, runs)
    works = sorted(run.run_s / shape.relative_duration(run.amount) for run in runs)
    base_s = _mean(works)
    modelled = {amount: base_s * shape.relative_duration(amount) for amount in elastic.amounts}
    seconds = _make_monotonic(_blend_observed(modelled, runs))
    scale = seconds[elastic.amounts[0]] / base_s
    return _FittedCurve(base_s * scale, seconds, tuple(work * scale for work in works))


@dataclass(frozen=True, slots=True)
class _ScalingFit:
    """How duration falls with the amount: as declared, and the more runs show it, as seen."""

    elasticity: Elasticity
    base: int
    fraction: float
    """Of the work, that runs in parallel, as least squares on 1/amount find it."""
    trust: float
    """In that, against what was declared: 0..1."""
    useful_amount: int | None

    @classmethod
    def fit(cls, elastic: ElasticResource, runs: Sequence[RunObservation]) -> "_ScalingFit":
        base = elastic.amounts[0]
        fraction, trust = _fit_parallel_fraction(_durations_by_amount(runs), base)
        return cls(elastic.elasticity, base, fraction, trust, _useful_amount(elastic, runs))

    def relative_duration(self, amount: int) -> float:
        if self.useful_amount is not None:
            amount = min(amount, max(self.useful_amount, self.base))
        declared = self.elasticity.relative_duration(amount, base=self.base)
        seen = (1.0 - self.fraction) + self.fraction * self.base / amount
        return max((1.0 - self.trust) * declared + self.trust * seen, 1e-9)


def _durations_by_amount(runs: Iterable[RunObservation]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for run in runs:
        if run.is_steady:
            found.setdefault(run.amount, []).append(run.run_s)
    return found


def _fit_parallel_fraction(durations_by_amount: Mapping[int, Sequence[float]], base: int) -> tuple[float, float]:
    """The parallel fraction, and how far it is to be trusted: by the runs at other amounts than the commonest."""
    if len(durations_by_amount) < 2:
        return 0.0, 0.0
    points = [(base / amount, _mean(durations), len(durations)) for amount, durations in durations_by_amount.items()]
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


def _useful_amount(elastic: ElasticResource, runs: Sequence[RunObservation]) -> int | None:
    """The least amount that is not below what any run used of its cores, where some had more than that.

    A serial part lowers the mean use too: who used about what the declared elasticity says needs what it says.
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
    """Cores in the mean over a run, if it uses all of the smallest amount."""
    base = elastic.amounts[0]
    return base / 1000 / elastic.elasticity.relative_duration(amount, base=base)


def _blend_observed(modelled: Mapping[int, float], runs: Sequence[RunObservation]) -> dict[int, float]:
    """Where an amount was tried, what it took there; the model weighs `DOUBT` runs beside those."""
    tried = {amount: durations for amount, durations in _durations_by_amount(runs).items() if amount in modelled}
    seen = {
        amount: (PRIOR_WEIGHT * modelled[amount] + len(durations) * _mean(durations)) / (PRIOR_WEIGHT + len(durations))
        for amount, durations in tried.items()
    }
    return {**modelled, **seen}


def _make_monotonic(seconds: Mapping[int, float]) -> dict[int, float]:
    """More never takes longer, and is never more than proportionally faster: what says so is chance.

    Pooling neighbours that contradict each other would move them both; the smaller amount's figure is the safer one.
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


def _relative_duration(curve: _FittedCurve, cls: ActionClass, amount: int) -> float:
    """Relative to the smallest: that of the next smaller amount that the class may have."""
    below = [each for each in curve.seconds if each <= amount]
    if not below:
        return _declared_duration(cls, amount) if curve.seconds else 1.0
    return curve.seconds[max(below)] / curve.base_s


def _mean(durations: Iterable[float]) -> float:
    values = list(durations)
    longest = OUTLIER_FACTOR * median(values)
    return fmean(min(value, longest) for value in values)


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
    """The amount, microseconds of time and of processor time, and whether it was steady."""
    return [run.amount, round(1e6 * run.run_s), round(1e6 * run.cpu_s), int(run.is_steady)]


def _decode_run(run: Sequence[int]) -> RunObservation:
    amount, run_us, cpu_us, steady = run
    return RunObservation(amount, run_us / 1e6, cpu_us / 1e6, bool(steady))


MIN_STRAGGLER_RUNS = 8
"""Of its very class, or nobody can say what is usual."""
IGNORED_OVERRUN = 2.0
"""After so many times the limit nobody expects its end any more: it is in no forecast of when nodes are free."""
_LATE_QUANTILE, _MEDIAN_FACTOR = 0.99, 5.0


def straggler_limit_s(estimates: DurationEstimates, cls: ActionClass, resources: Resources) -> float | None:
    """The larger of what one run in a hundred exceeds and five times the usual; None where its runs say too little."""
    if cls.is_mixed or estimates.run_count(cls) < MIN_STRAGGLER_RUNS:
        return None
    amount = resources.get(main_resource(cls) or "", 0)
    late_s, usual_s = (estimates.quantile(cls, q, amount) for q in (_LATE_QUANTILE, 0.5))
    return max(late_s, _MEDIAN_FACTOR * usual_s)
