"""How long actions take, learnt from those that ended: by class and by how much of the elastic resource they had.

Orders and widths follow these figures, correctness never does. Seconds of execution, without waiting.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist, fmean, median

from arl_core.elasticity import Elasticity
from arl_core.model import ActionClass, Elastic

__all__ = ["PRIOR_S", "Estimates", "Observation"]

PRIOR_S = 1.0
"""Of an action of which nothing is known, with its smallest amount."""
WINDOW = 64
"""Runs of a class that are remembered: what changes is forgotten with the last of them."""
CLASSES = 10_000
"""Classes that are remembered; the one that was seen longest ago goes first."""
OUTLIER = 20.0
"""A run counts as no longer than so many times the median of its class."""
DOUBT = 4.0
"""What was declared weighs as many runs, beside those that were seen."""
SPREAD, SPREAD_WEIGHT = 1.0, 2.0
"""Standard deviation of the logarithm of durations, and the number of runs that this assumption weighs."""
SHORTEST_S = 1e-6
"""What managers measure in; a run that was kept and read again is the same."""
SPARE_RUNS = 2
"""Runs that must have left cores unused before no more than they used count as useful."""
AS_DECLARED = 0.75
"""Who used so much of what its declared elasticity says is taken to be as it says."""
HELPERS = 0.1
"""Cores that a program uses beside its work, at its start or in threads that mostly sleep."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One run: with how much of the elastic resource, for how long, and with how much processor time."""

    amount: int
    run_s: float
    cpu_s: float = 0.0
    steady: bool = True
    """False where the amount changed meanwhile: `amount` is what it had on average, and its use says nothing."""


@dataclass(slots=True)
class _Class:
    runs: deque[Observation] = field(default_factory=lambda: deque(maxlen=WINDOW))
    curve: "_Curve | None" = None
    """Made when it is asked for, until the next run."""


@dataclass(frozen=True, slots=True)
class _Curve:
    """A class as its window shows it."""

    base_s: float
    """With the smallest amount."""
    seconds: Mapping[int, float]
    """By amount, for those that the class may have; never rising."""
    works: tuple[float, ...]
    """Durations of the runs, each as it would have been with the smallest amount, in rising order."""


class Estimates:
    """Answers `arl_core.snapshot.Durations`. A class of its own, else what is like it, else `PRIOR_S`."""

    def __init__(self) -> None:
        self._classes: OrderedDict[int, _Class] = OrderedDict()
        self._alike: dict[str, OrderedDict[int, float]] = {}
        """Of the classes of a kind whose elasticity has the same form: the mean of each, with its smallest amount."""
        self._means: dict[str, float] = {}
        """Of those, as long as none changes: what is unknown is asked for most where classes are many."""
        self._changed: dict[int, None] = {}

    @property
    def classes(self) -> int:
        """How many are known."""
        return len(self._classes)

    def runs(self, cls: ActionClass) -> int:
        """Of this very class, that are remembered."""
        known = self._classes.get(cls.key)
        return len(known.runs) if known is not None else 0

    def knows_alike(self, cls: ActionClass) -> bool:
        """Whether an unknown class is expected to be as others that are like it."""
        return bool(self._alike.get(_form(cls)))

    def seconds(self, cls: ActionClass, amount: int) -> float:
        """The mean, in which a straggler counts as `OUTLIER` usual ones at most."""
        curve = self._curve(cls)
        if curve is None:
            return self._unknown(cls) * _declared(cls, amount)
        known = curve.seconds.get(amount)
        return known if known is not None else curve.base_s * _between(curve, cls, amount)

    def quantile(self, cls: ActionClass, q: float, amount: int) -> float:
        """What a run exceeds with probability 1 - `q`, 0 < q < 1; the wider of the mean, the fewer runs were seen.

        With enough runs an order statistic, which assumes no distribution; else that of a log-normal one whose
        spread is uncertain too.
        """
        if not 0.0 < q < 1.0:
            raise ValueError("a quantile lies between 0 and 1")
        curve = self._curve(cls)
        if curve is None:
            width = NormalDist().inv_cdf(q) * SPREAD * math.sqrt(2.0)
            return self.seconds(cls, amount) * math.exp(width)
        return _quantile(curve.works, q) * self.seconds(cls, amount) / curve.base_s

    def observe(self, cls: ActionClass, *, amount: int, run_s: float, cpu_s: float = 0.0, steady: bool = True) -> None:
        """An action ran to its own end, well or badly. What was killed says nothing and must not come here."""
        if amount < 0 or run_s < 0:
            return
        known = self._classes.get(cls.key)
        if known is None:
            known = self._classes[cls.key] = _Class()
            self._forget_oldest()
        self._classes.move_to_end(cls.key)
        known.runs.append(Observation(amount, max(round(run_s, 6), SHORTEST_S), round(cpu_s, 6), steady))
        known.curve = None
        self._changed[cls.key] = None

    def useful(self, cls: ActionClass) -> int | None:
        """The largest amount of which runs used all, as far as was seen; None where none left anything unused."""
        known, elastic = self._classes.get(cls.key), cls.demand.elastic
        return _useful(elastic, known.runs) if known is not None and elastic is not None else None

    def changes(self, *, limit: int) -> dict[int, list[list[int]]]:
        """By class key what `restore` takes, of at most so many classes that changed since this was last asked."""
        keys = [key for key, _ in zip(self._changed, range(limit), strict=False)]
        for key in keys:
            del self._changed[key]
        return {key: [_written(run) for run in self._classes[key].runs] for key in keys}

    def changed_again(self, keys: Iterable[int]) -> None:
        """These could not be kept."""
        self._changed |= dict.fromkeys(key for key in keys if key in self._classes)

    def restore(self, kept: Mapping[int, Sequence[Sequence[int]]]) -> None:
        """What an earlier holder of this place wrote, the longest ago first; what was seen since is kept."""
        since, self._classes = self._classes, OrderedDict()
        for key, runs in kept.items():
            self._classes[key] = _Class(deque((_read(run) for run in runs), maxlen=WINDOW))
        for key, known in since.items():
            self._classes[key] = known
            self._classes.move_to_end(key)
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        while len(self._classes) > CLASSES:
            self._changed.pop(self._classes.popitem(last=False)[0], None)

    def _curve(self, cls: ActionClass) -> _Curve | None:
        known = self._classes.get(cls.key)
        if known is None or not known.runs:
            return None
        if known.curve is None:
            known.curve = _curve_of(cls, known.runs)
            self._pool(cls, known.curve.base_s)
        return known.curve

    def _pool(self, cls: ActionClass, base_s: float) -> None:
        form = _form(cls)
        alike = self._alike.setdefault(form, OrderedDict())
        self._means.pop(form, None)
        alike[cls.key] = base_s
        alike.move_to_end(cls.key)
        if len(alike) > WINDOW:
            alike.popitem(last=False)

    def _unknown(self, cls: ActionClass) -> float:
        form = _form(cls)
        mean = self._means.get(form)
        if mean is None:
            alike = self._alike.get(form)
            mean = self._means[form] = _mean(alike.values()) if alike else PRIOR_S
        return mean


def _form(cls: ActionClass) -> str:
    elastic = cls.demand.elastic
    return f"{cls.kind} {type(elastic.elasticity).__name__ if elastic is not None else '-'}"


def _declared(cls: ActionClass, amount: int) -> float:
    elastic = cls.demand.elastic
    if elastic is None:
        return 1.0
    return elastic.elasticity.relative_duration(amount, base=elastic.amounts[0])


def _curve_of(cls: ActionClass, runs: Sequence[Observation]) -> _Curve:
    elastic = cls.demand.elastic
    if elastic is None:
        works = sorted(run.run_s for run in runs)
        return _Curve(_mean(works), {}, tuple(works))
    shape = _Shape.of(elastic, runs)
    works = sorted(run.run_s / shape.relative(run.amount) for run in runs)
    base_s = _mean(works)
    modelled = {amount: base_s * shape.relative(amount) for amount in elastic.amounts}
    seconds = _monotonic(_believed(modelled, runs))
    scale = seconds[elastic.amounts[0]] / base_s
    return _Curve(base_s * scale, seconds, tuple(work * scale for work in works))


@dataclass(frozen=True, slots=True)
class _Shape:
    """How duration falls with the amount: as declared, and the more runs show it, as seen."""

    elasticity: Elasticity
    base: int
    fraction: float
    """Of the work, that runs in parallel, as least squares on 1/amount find it."""
    trust: float
    """In that, against what was declared: 0..1."""
    useful: int | None

    @classmethod
    def of(cls, elastic: Elastic, runs: Sequence[Observation]) -> "_Shape":
        base = elastic.amounts[0]
        fraction, trust = _fitted(_durations_by_amount(runs), base)
        return cls(elastic.elasticity, base, fraction, trust, _useful(elastic, runs))

    def relative(self, amount: int) -> float:
        if self.useful is not None:
            amount = min(amount, max(self.useful, self.base))
        declared = self.elasticity.relative_duration(amount, base=self.base)
        seen = (1.0 - self.fraction) + self.fraction * self.base / amount
        return max((1.0 - self.trust) * declared + self.trust * seen, 1e-9)


def _durations_by_amount(runs: Iterable[Observation]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for run in runs:
        if run.steady:
            found.setdefault(run.amount, []).append(run.run_s)
    return found


def _fitted(found: Mapping[int, Sequence[float]], base: int) -> tuple[float, float]:
    """The parallel fraction, and how far it is to be trusted: by the runs at other amounts than the commonest."""
    if len(found) < 2:
        return 0.0, 0.0
    points = [(base / amount, _mean(durations), len(durations)) for amount, durations in found.items()]
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
    return parallel / (parallel + serial), others / (others + DOUBT)


def _useful(elastic: Elastic, runs: Sequence[Observation]) -> int | None:
    """The least amount that is not below what any run used of its cores, where some had more than that.

    A serial part lowers the mean use too: who used about what the declared elasticity says needs what it says.
    """
    if elastic.resource != "cpu_milli":
        return None
    steady = [run for run in runs if run.steady and run.cpu_s > 0.0]
    if not steady or any(run.cpu_s / run.run_s >= AS_DECLARED * _declared_use(elastic, run.amount) for run in steady):
        return None
    used = 1000 * math.ceil(max(run.cpu_s / run.run_s for run in steady) - HELPERS)
    useful = next((amount for amount in elastic.amounts if amount >= used), elastic.amounts[-1])
    spare = sum(1 for run in steady if run.amount > useful)
    return useful if spare >= SPARE_RUNS else None


def _declared_use(elastic: Elastic, amount: int) -> float:
    """Cores in the mean over a run, if it uses all of the smallest amount."""
    base = elastic.amounts[0]
    return base / 1000 / elastic.elasticity.relative_duration(amount, base=base)


def _believed(modelled: Mapping[int, float], runs: Sequence[Observation]) -> dict[int, float]:
    """Where an amount was tried, what it took there; the model weighs `DOUBT` runs beside those."""
    tried = {amount: durations for amount, durations in _durations_by_amount(runs).items() if amount in modelled}
    seen = {
        amount: (DOUBT * modelled[amount] + len(durations) * _mean(durations)) / (DOUBT + len(durations))
        for amount, durations in tried.items()
    }
    return {**modelled, **seen}


def _monotonic(seconds: Mapping[int, float]) -> dict[int, float]:
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


def _between(curve: _Curve, cls: ActionClass, amount: int) -> float:
    """Relative to the smallest: that of the next smaller amount that the class may have."""
    below = [each for each in curve.seconds if each <= amount]
    if not below:
        return _declared(cls, amount) if curve.seconds else 1.0
    return curve.seconds[max(below)] / curve.base_s


def _mean(durations: Iterable[float]) -> float:
    values = list(durations)
    longest = OUTLIER * median(values)
    return fmean(min(value, longest) for value in values)


def _quantile(works: Sequence[float], q: float) -> float:
    rank = math.ceil(q * (len(works) + 1))
    if rank <= len(works):
        return works[rank - 1]
    logs = [math.log(work) for work in works]
    centre = fmean(logs)
    squares = SPREAD_WEIGHT * SPREAD**2 + sum((each - centre) ** 2 for each in logs)
    deviation = math.sqrt(squares / (SPREAD_WEIGHT + len(logs) - 1) * (1 + 1 / len(logs)))
    return max(works[-1], math.exp(centre + NormalDist().inv_cdf(q) * deviation))


def _written(run: Observation) -> list[int]:
    """The amount, microseconds of time and of processor time, and whether it was steady."""
    return [run.amount, round(1e6 * run.run_s), round(1e6 * run.cpu_s), int(run.steady)]


def _read(run: Sequence[int]) -> Observation:
    amount, run_us, cpu_us, steady = run
    return Observation(amount, run_us / 1e6, cpu_us / 1e6, bool(steady))
