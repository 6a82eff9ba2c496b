"""Expected durations of a class by degree of parallelism, and the choice of that degree.

«Units» are cores or devices, depending on the resource; times are seconds.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Protocol

from arl_core.domain.model import ActionClass, Resources, RunningAction
from arl_core.durations.scaling_fit import RunCounts
from arl_core.durations.shared_demand import CpuUsageModel, NoCpuUsage, shared_start_amounts
from arl_core.queue.fairness import own_share

__all__ = [
    "CurveCache",
    "DeclaredDurations",
    "DurationCurve",
    "DurationModel",
    "ParallelismOption",
    "best_option",
    "main_resource",
    "to_units",
]

REFRESH_AFTER_RUN_S = 1.0
"""Seconds until new observations of a class take effect; limits rebuilds, as a round needs hundreds of curves."""

MAX_AGE_S = 10.0
"""Maximum age of a curve in seconds if its class has no new runs; similar classes may have new ones."""
MAX_CLASSES = 100_000
"""Maximum number of cached curves. Curves above it are rebuilt on each use instead of evicting others."""
MANY_CLASSES = 1_000
"""Number of classes above which cache tokens last `REFRESH_AFTER_RUN_S`; some curve expires in every round."""

_CORES, _MILLI_PER_CORE = "cpu_milli", 1000
_MIN_REMAINING_S = 0.05
_MIN_GAIN = 1e-6
"""Least relative gain of a larger amount; smaller differences are rounding errors."""


class DurationModel(Protocol):
    """A model of action durations. Queue order and degrees of parallelism depend on it; correctness never does."""

    def seconds(self, cls: ActionClass, amount: int) -> float:
        """Return the expected seconds with this amount of the elastic resource; ignored if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class DeclaredDurations:
    """A model without observations, based on declarations only: every class takes `prior_s` at its minimum."""

    prior_s: float = 1.0

    def seconds(self, cls: ActionClass, amount: int) -> float:
        """Return the declared duration with this amount, as a multiple of `prior_s`."""
        elastic = cls.demand.elastic
        if elastic is None:
            return self.prior_s
        return self.prior_s * elastic.elasticity.relative_duration(amount, base=elastic.amounts[0])


@dataclass(frozen=True, slots=True)
class ParallelismOption:
    """An amount of the elastic resource and the expected duration with it."""

    amount: int
    units: float
    seconds: float


@dataclass(slots=True, eq=False)
class DurationCurve:
    """The duration curve of one class. It is immutable except for its caches."""

    resource: str | None
    """Main resource of the class."""
    area_s: float
    """Unit-seconds at the smallest degree of parallelism."""
    cores: int
    """Minimum milli-cores."""
    start_amounts: Resources
    """Amounts at the start of an action that is not elastic; fewer cores than the minimum if its class uses less."""
    expected_cpu_s: float
    """Expected CPU-seconds of an action."""
    min_share: tuple[Resources, float] = field(default=({}, 0.0), repr=False)
    """Total resources, and the cell-seconds that one action takes at its minimum, cached for that total."""
    _source: tuple[ActionClass, DurationModel] = field(kw_only=True, repr=False)
    _by_amount: dict[int, float] | None = field(default=None, repr=False)
    _options: tuple[ParallelismOption, ...] | None = field(default=None, repr=False)
    """Caches of options and durations; None until an amount above the minimum is needed, which is rare."""

    @property
    def options(self) -> tuple[ParallelismOption, ...]:
        """Return the options in rising order; each is faster than all before it, so useless amounts are left out."""
        if self._options is None:
            widths: list[ParallelismOption] = []
            for amount, seconds in self._seconds().items():
                if not widths or seconds < (1.0 - _MIN_GAIN) * widths[-1].seconds:
                    widths.append(ParallelismOption(amount, to_units(self.resource, amount), seconds))
            self._options = tuple(widths)
        return self._options

    def expected_s(self, amount: int) -> float:
        """Return the expected seconds with this amount of `resource`."""
        seconds = self._seconds().get(amount)
        cls, durations = self._source
        return seconds if seconds is not None else durations.seconds(cls, amount)

    def _seconds(self) -> dict[int, float]:
        if self._by_amount is None:
            (cls, durations), elastic = self._source, self._source[0].demand.elastic
            amounts = elastic.amounts if elastic else (_min_amount(cls, self.resource),)
            self._by_amount = {amount: durations.seconds(cls, amount) for amount in amounts}
        return self._by_amount


def to_units(resource: str | None, amount: int) -> float:
    """Convert an amount to units: milli-cores to cores, other resources unchanged."""
    return amount / _MILLI_PER_CORE if resource == _CORES else float(amount)


def best_option(
    options: Sequence[ParallelismOption], *, price: float, backlog_s: float, units: float, remaining_work: float = 1.0
) -> ParallelismOption | None:
    """Return the option with the least own time plus delay to others; None if the smallest exceeds `units`.

    `price` is the delay in seconds that one unit-second causes to queued actions; no action waits any more after
    `backlog_s`. `remaining_work` is the fraction of the work that is left.
    """
    best, least = None, float("inf")
    for width in options:
        if width.units > units:
            break
        own = remaining_work * width.seconds
        cost = own + width.units * price * min(own, backlog_s)
        if cost < least - 1e-12:
            best, least = width, cost
    return best


class CurveCache:
    """A cache of duration curves. A curve is built on demand, and rebuilt at a limited rate after new observations."""

    def __init__(self, durations: DurationModel | None = None, usage: CpuUsageModel | None = None) -> None:
        self.durations = durations or DeclaredDurations()
        self._usage = usage or NoCpuUsage()
        self.now = 0.0
        """Current time by the clock of the rounds; set by the caller that runs rounds."""
        self._cached: dict[int, tuple[float, float, DurationCurve]] = {}
        """Expiry, creation time and curve, by class key."""
        self._expirations: list[tuple[float, int]] = []
        """Heap of expiry times by class; entries may be outdated if new observations shortened the lifetime."""
        self._cache_tokens: dict[Hashable, object] = {}
        self._evicted_at = float("-inf")
        """Time of the last eviction of expired curves."""
        self._has_rebuilt = False
        """True if an expired curve was rebuilt since then."""

    def curve_for(self, cls: ActionClass) -> DurationCurve:
        """Return the duration curve of a class, from the cache while it is valid."""
        known = self._cached.get(cls.key)
        if known is not None and self.now < known[0]:
            return known[2]
        self._evict_expired()
        curve = _build_curve(cls, self.durations, self._usage)
        self._has_rebuilt = self._has_rebuilt or cls.key in self._cached
        if cls.key in self._cached or len(self._cached) < MAX_CLASSES:
            self._cached[cls.key] = (self.now + MAX_AGE_S, self.now, curve)
            heappush(self._expirations, (self.now + MAX_AGE_S, cls.key))
        return curve

    def cache_token(self, purpose: Hashable) -> object:
        """Return an object that stays the same for this purpose while no curve changes; it validates derived values.

        With more than `MANY_CLASSES` classes it may stay the same for `REFRESH_AFTER_RUN_S` after a change.
        """
        self._evict_expired()
        return self._cache_tokens.setdefault(purpose, object())

    def invalidate(self, key: int) -> None:
        """Note that the durations of the class with this key may have changed."""
        known = self._cached.get(key)
        if known is not None:
            until, made, curve = known
            if until > made + REFRESH_AFTER_RUN_S:
                self._cached[key] = (made + REFRESH_AFTER_RUN_S, made, curve)
                heappush(self._expirations, (made + REFRESH_AFTER_RUN_S, key))

    def expected_s(self, cls: ActionClass, resources: Resources) -> float:
        """Return the expected run time of an action of this class with these amounts."""
        curve = self.curve_for(cls)
        amount = resources.get(curve.resource, 0) if curve.resource is not None else 0
        return curve.expected_s(amount)

    def share_s(self, cls: ActionClass, resources: Resources, total: Resources) -> float:
        """Return the expected cell-seconds of an action with these amounts; cached for the minimum of its class."""
        return self.share_s_on_curve(self.curve_for(cls), cls, resources, total)

    def share_s_on_curve(self, curve: DurationCurve, cls: ActionClass, resources: Resources, total: Resources) -> float:
        """Return the same as `share_s` for a caller that already has the curve."""
        if resources is not cls.demand.minimum:
            return own_share(resources, total) * self.expected_s(cls, resources)
        if curve.min_share[0] is not total:
            curve.min_share = (total, own_share(resources, total) * self.expected_s(cls, resources))
        return curve.min_share[1]

    def run_counts(self, cls: ActionClass) -> RunCounts | None:
        """Return the numbers of ended runs of the class; None if runs are not observed."""
        return self._usage.run_counts(cls)

    def remaining_s(self, running: RunningAction) -> float:
        """Return the expected remaining seconds.

        An action past its estimate is expected to need half its elapsed time again (Tsafrir et al. 2007).
        """
        if running.cls is not None:
            left = running.remaining_work * self.expected_s(running.cls, running.resources) - (
                self.now - running.allocated_since
            )
            if left > 0:
                return left
        return max((self.now - running.granted) / 2, _MIN_REMAINING_S)

    def _evict_expired(self) -> None:
        """Drop expired curves, and the cache tokens if any curve changed."""
        if len(self._cached) > MANY_CLASSES and 0 <= self.now - self._evicted_at < REFRESH_AFTER_RUN_S:
            return
        is_other, self._has_rebuilt, self._evicted_at = self._has_rebuilt, False, self.now
        while self._expirations and self._expirations[0][0] <= self.now:
            key = heappop(self._expirations)[1]
            known = self._cached.get(key)
            if known is not None and known[0] <= self.now:
                del self._cached[key]
                is_other = True
        if is_other:
            self._cache_tokens.clear()


def _build_curve(cls: ActionClass, durations: DurationModel, usage: CpuUsageModel) -> DurationCurve:
    resource, minimum = main_resource(cls), cls.demand.minimum
    least = _min_amount(cls, resource)
    expected_cpu_s = area_s = to_units(resource, least) * durations.seconds(cls, least)
    used = usage.cpu_usage(cls) if cls.sharing is not None else None
    if used is not None:
        # Time on shared cores depends on the others; the work does not.
        expected_cpu_s = area_s = used.cpu_s
    amounts = shared_start_amounts(cls, used)
    return DurationCurve(resource, area_s, minimum.get(_CORES, 0), amounts, expected_cpu_s, _source=(cls, durations))


def _min_amount(cls: ActionClass, resource: str | None) -> int:
    return cls.demand.minimum.get(resource, 0) if resource is not None else 0


def main_resource(cls: ActionClass) -> str | None:
    """Return the resource that parallelism is counted in: the elastic one, else cores, else any counted resource."""
    demand = cls.demand
    if demand.elastic is not None:
        return demand.elastic.resource
    if demand.minimum.get(_CORES):
        return _CORES
    return next((name for name in sorted(demand.minimum) if name not in ("memory_mib", "disk_mib")), None)
