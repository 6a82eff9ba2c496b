"""How long actions of a class take at each width, and how wide one should be.

«Units» are cores or devices, whatever the resource counts in; times are seconds.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Protocol

from arl_core.domain.model import ActionClass, Resources, RunningAction
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
"""What was learnt of a class counts after so long at the latest: a round asks for hundreds of classes."""

MAX_AGE_S = 10.0
"""So long at most where nothing was: what is like it may have taught something."""
MAX_CLASSES = 100_000
"""That are kept at most; what is asked of others is made each time, so that they drive out nobody."""
MANY_CLASSES = 1_000
"""From so many on, what was made of all of them holds for `FRESH_S`: each round one of them is due."""

_CORES, _MILLI_PER_CORE = "cpu_milli", 1000
_MIN_REMAINING_S = 0.05


class DurationModel(Protocol):
    """How long actions are expected to take. Orders and widths follow it, correctness never does."""

    def seconds(self, cls: ActionClass, amount: int) -> float:
        """Of an action of this class with so much of its elastic resource; of any other, `amount` is not looked at."""
        ...


@dataclass(frozen=True, slots=True)
class DeclaredDurations:
    """Nothing is known but what clients declare: every class takes `prior_s` at its minimum."""

    prior_s: float = 1.0

    def seconds(self, cls: ActionClass, amount: int) -> float:
        elastic = cls.demand.elastic
        if elastic is None:
            return self.prior_s
        return self.prior_s * elastic.elasticity.relative_duration(amount, base=elastic.amounts[0])


@dataclass(frozen=True, slots=True)
class ParallelismOption:
    """One choice of the elastic resource, and how long the action is expected to take with it."""

    amount: int
    units: float
    seconds: float


@dataclass(slots=True, eq=False)
class DurationCurve:
    """Of one class. It does not change, but for what was last asked of it."""

    resource: str | None
    """`main_resource`."""
    area_s: float
    """Unit-seconds at the smallest width."""
    cores: int
    """Milli-cores at least."""
    min_share: tuple[Resources, float] = field(default=({}, 0.0), repr=False)
    """Of the whole, the seconds of it that one takes at its minimum."""
    _source: tuple[ActionClass, DurationModel] = field(kw_only=True, repr=False)
    _by_amount: dict[int, float] | None = field(default=None, repr=False)
    _options: tuple[ParallelismOption, ...] | None = field(default=None, repr=False)
    """Both None until somebody looks beyond the smallest: of most that wait nobody does."""

    @property
    def options(self) -> tuple[ParallelismOption, ...]:
        """In rising order, each faster than all before it: more that brings nothing is no choice."""
        if self._options is None:
            widths: list[ParallelismOption] = []
            for amount, seconds in self._seconds().items():
                if not widths or seconds < widths[-1].seconds:
                    widths.append(ParallelismOption(amount, to_units(self.resource, amount), seconds))
            self._options = tuple(widths)
        return self._options

    def expected_s(self, amount: int) -> float:
        """With so much of `resource`."""
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
    return amount / _MILLI_PER_CORE if resource == _CORES else float(amount)


def best_option(
    options: Sequence[ParallelismOption], *, price: float, backlog_s: float, units: float, remaining_work: float = 1.0
) -> ParallelismOption | None:
    """Least own time plus the delay it causes to others; None where even the smallest is more than `units`.

    `price` is what a unit-second costs those who wait, in seconds; nobody waits any more after `backlog_s`. `left` is
    the part of the work that is to be done.
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
    """Made of `durations` when they are asked for, and again when something was learnt, but not all the time."""

    def __init__(self, durations: DurationModel | None = None) -> None:
        self.durations = durations or DeclaredDurations()
        self.now = 0.0
        """Whoever runs rounds sets it, by the clock that rounds go by."""
        self._cached: dict[int, tuple[float, float, DurationCurve]] = {}
        """Until when it counts, when it was made."""
        self._expirations: list[tuple[float, int]] = []
        """A heap of when a class's curve counts no longer, or did not before something was learnt."""
        self._cache_tokens: dict[Hashable, object] = {}
        self._evicted_at = float("-inf")
        """When it was last looked for those that count no longer."""
        self._has_rebuilt = False
        """Since then, one that counted no longer."""

    def curve_for(self, cls: ActionClass) -> DurationCurve:
        known = self._cached.get(cls.key)
        if known is not None and self.now < known[0]:
            return known[2]
        self._evict_expired()
        curve = _build_curve(cls, self.durations)
        self._has_rebuilt = self._has_rebuilt or cls.key in self._cached
        if cls.key in self._cached or len(self._cached) < MAX_CLASSES:
            self._cached[cls.key] = (self.now + MAX_AGE_S, self.now, curve)
            heappush(self._expirations, (self.now + MAX_AGE_S, cls.key))
        return curve

    def cache_token(self, purpose: Hashable) -> object:
        """The same object for one use while no curve has become another: what was made of them holds as long.

        Of `MANY` some always have; there it is the same for `FRESH_S`, at most.
        """
        self._evict_expired()
        return self._cache_tokens.setdefault(purpose, object())

    def invalidate(self, key: int) -> None:
        """Of the class with this key, durations may be others now."""
        known = self._cached.get(key)
        if known is not None:
            until, made, curve = known
            if until > made + REFRESH_AFTER_RUN_S:
                self._cached[key] = (made + REFRESH_AFTER_RUN_S, made, curve)
                heappush(self._expirations, (made + REFRESH_AFTER_RUN_S, key))

    def expected_s(self, cls: ActionClass, resources: Resources) -> float:
        """How long an action of this class takes with these amounts, from its start to its end."""
        curve = self.curve_for(cls)
        amount = resources.get(curve.resource, 0) if curve.resource is not None else 0
        return curve.expected_s(amount)

    def share_s(self, cls: ActionClass, resources: Resources, total: Resources) -> float:
        """How many seconds of all nodes together that is. Asked of a class's own minimum again, it is known."""
        return self.share_s_on_curve(self.curve_for(cls), cls, resources, total)

    def share_s_on_curve(self, curve: DurationCurve, cls: ActionClass, resources: Resources, total: Resources) -> float:
        """As `share_s`, for whoever has the class's curve."""
        if resources is not cls.demand.minimum:
            return own_share(resources, total) * self.expected_s(cls, resources)
        if curve.min_share[0] is not total:
            curve.min_share = (total, own_share(resources, total) * self.expected_s(cls, resources))
        return curve.min_share[1]

    def remaining_s(self, running: RunningAction) -> float:
        """What is expected to be left. Who has overrun is taken to need half as long again (Tsafrir et al. 2007)."""
        if running.cls is not None:
            left = running.remaining_work * self.expected_s(running.cls, running.resources) - (
                self.now - running.allocated_since
            )
            if left > 0:
                return left
        return max((self.now - running.granted) / 2, _MIN_REMAINING_S)

    def _evict_expired(self) -> None:
        """Curves that count no longer."""
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


def _build_curve(cls: ActionClass, durations: DurationModel) -> DurationCurve:
    resource, minimum = main_resource(cls), cls.demand.minimum
    least = _min_amount(cls, resource)
    area_s = to_units(resource, least) * durations.seconds(cls, least)
    return DurationCurve(resource, area_s, minimum.get(_CORES, 0), _source=(cls, durations))


def _min_amount(cls: ActionClass, resource: str | None) -> int:
    return cls.demand.minimum.get(resource, 0) if resource is not None else 0


def main_resource(cls: ActionClass) -> str | None:
    """What an action of this class is wide in: its elastic resource, else cores, else whatever it counts."""
    demand = cls.demand
    if demand.elastic is not None:
        return demand.elastic.resource
    if demand.minimum.get(_CORES):
        return _CORES
    return next((name for name in sorted(demand.minimum) if name not in ("memory_mib", "disk_mib")), None)
