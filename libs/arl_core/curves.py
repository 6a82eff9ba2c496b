"""How long actions of a class take at each width, and how wide one should be.

«Units» are cores or devices, whatever the resource counts in; times are seconds.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Protocol

from arl_core.fairness import own_share
from arl_core.model import ActionClass, Amounts, Running

__all__ = ["AsDeclared", "Curve", "Curves", "Durations", "Width", "best_width", "main_resource", "units_of"]

FRESH_S = 1.0
"""What was learnt of a class counts after so long at the latest: a round asks for hundreds of classes."""

KEPT_S = 10.0
"""So long at most where nothing was: what is like it may have taught something."""
CLASSES = 100_000
"""That are kept at most; what is asked of others is made each time, so that they drive out nobody."""
MANY = 1_000
"""From so many on, what was made of all of them holds for `FRESH_S`: each round one of them is due."""

_CORES, _PER_CORE = "cpu_milli", 1000
_LEAST_S = 0.05


class Durations(Protocol):
    """How long actions are expected to take. Orders and widths follow it, correctness never does."""

    def seconds(self, cls: ActionClass, amount: int) -> float:
        """Of an action of this class with so much of its elastic resource; of any other, `amount` is not looked at."""
        ...


@dataclass(frozen=True, slots=True)
class AsDeclared:
    """Nothing is known but what clients declare: every class takes `prior_s` at its minimum."""

    prior_s: float = 1.0

    def seconds(self, cls: ActionClass, amount: int) -> float:
        elastic = cls.demand.elastic
        if elastic is None:
            return self.prior_s
        return self.prior_s * elastic.elasticity.relative_duration(amount, base=elastic.amounts[0])


@dataclass(frozen=True, slots=True)
class Width:
    """One choice of the elastic resource, and how long the action is expected to take with it."""

    amount: int
    units: float
    seconds: float


@dataclass(slots=True, eq=False)
class Curve:
    """Of one class. It does not change, but for what was last asked of it."""

    resource: str | None
    """`main_resource`."""
    area_s: float
    """Unit-seconds at the smallest width."""
    cores: int
    """Milli-cores at least."""
    least_share: tuple[Amounts, float] = field(default=({}, 0.0), repr=False)
    """Of the whole, the seconds of it that one takes at its minimum."""
    _of: tuple[ActionClass, Durations] = field(kw_only=True, repr=False)
    _by_amount: dict[int, float] | None = field(default=None, repr=False)
    _widths: tuple[Width, ...] | None = field(default=None, repr=False)
    """Both None until somebody looks beyond the smallest: of most that wait nobody does."""

    @property
    def widths(self) -> tuple[Width, ...]:
        """In rising order, each faster than all before it: more that brings nothing is no choice."""
        if self._widths is None:
            widths: list[Width] = []
            for amount, seconds in self._seconds().items():
                if not widths or seconds < widths[-1].seconds:
                    widths.append(Width(amount, units_of(self.resource, amount), seconds))
            self._widths = tuple(widths)
        return self._widths

    def expected_s(self, amount: int) -> float:
        """With so much of `resource`."""
        seconds = self._seconds().get(amount)
        cls, durations = self._of
        return seconds if seconds is not None else durations.seconds(cls, amount)

    def _seconds(self) -> dict[int, float]:
        if self._by_amount is None:
            (cls, durations), elastic = self._of, self._of[0].demand.elastic
            amounts = elastic.amounts if elastic else (_least(cls, self.resource),)
            self._by_amount = {amount: durations.seconds(cls, amount) for amount in amounts}
        return self._by_amount


def units_of(resource: str | None, amount: int) -> float:
    return amount / _PER_CORE if resource == _CORES else float(amount)


def best_width(
    widths: Sequence[Width], *, price: float, backlog_s: float, units: float, left: float = 1.0
) -> Width | None:
    """Least own time plus the delay it causes to others; None where even the smallest is more than `units`.

    `price` is what a unit-second costs those who wait, in seconds; nobody waits any more after `backlog_s`. `left` is
    the part of the work that is to be done.
    """
    best, least = None, float("inf")
    for width in widths:
        if width.units > units:
            break
        own = left * width.seconds
        cost = own + width.units * price * min(own, backlog_s)
        if cost < least - 1e-12:
            best, least = width, cost
    return best


class Curves:
    """Made of `durations` when they are asked for, and again when something was learnt, but not all the time."""

    def __init__(self, durations: Durations | None = None) -> None:
        self.durations = durations or AsDeclared()
        self.now = 0.0
        """Whoever runs rounds sets it, by the clock that rounds go by."""
        self._known: dict[int, tuple[float, float, Curve]] = {}
        """Until when it counts, when it was made."""
        self._due: list[tuple[float, int]] = []
        """A heap of when a class's curve counts no longer, or did not before something was learnt."""
        self._bases: dict[Hashable, object] = {}
        self._renewed = float("-inf")
        """When it was last looked for those that count no longer."""
        self._remade = False
        """Since then, one that counted no longer."""

    def of(self, cls: ActionClass) -> Curve:
        known = self._known.get(cls.key)
        if known is not None and self.now < known[0]:
            return known[2]
        self._forget_due()
        curve = _curve(cls, self.durations)
        self._remade = self._remade or cls.key in self._known
        if cls.key in self._known or len(self._known) < CLASSES:
            self._known[cls.key] = (self.now + KEPT_S, self.now, curve)
            heappush(self._due, (self.now + KEPT_S, cls.key))
        return curve

    def basis(self, use: Hashable) -> object:
        """The same object for one use while no curve has become another: what was made of them holds as long.

        Of `MANY` some always have; there it is the same for `FRESH_S`, at most.
        """
        self._forget_due()
        return self._bases.setdefault(use, object())

    def learnt(self, key: int) -> None:
        """Of the class with this key, durations may be others now."""
        known = self._known.get(key)
        if known is not None:
            until, made, curve = known
            if until > made + FRESH_S:
                self._known[key] = (made + FRESH_S, made, curve)
                heappush(self._due, (made + FRESH_S, key))

    def expected_s(self, cls: ActionClass, amounts: Amounts) -> float:
        """How long an action of this class takes with these amounts, from its start to its end."""
        curve = self.of(cls)
        amount = amounts.get(curve.resource, 0) if curve.resource is not None else 0
        return curve.expected_s(amount)

    def share_s(self, cls: ActionClass, amounts: Amounts, whole: Amounts) -> float:
        """How many seconds of all nodes together that is. Asked of a class's own minimum again, it is known."""
        return self.share_on(self.of(cls), cls, amounts, whole)

    def share_on(self, curve: Curve, cls: ActionClass, amounts: Amounts, whole: Amounts) -> float:
        """As `share_s`, for whoever has the class's curve."""
        if amounts is not cls.demand.minimum:
            return own_share(amounts, whole) * self.expected_s(cls, amounts)
        if curve.least_share[0] is not whole:
            curve.least_share = (whole, own_share(amounts, whole) * self.expected_s(cls, amounts))
        return curve.least_share[1]

    def remaining_s(self, running: Running) -> float:
        """What is expected to be left. Who has overrun is taken to need half as long again (Tsafrir et al. 2007)."""
        if running.cls is not None:
            left = running.left * self.expected_s(running.cls, running.amounts) - (self.now - running.since)
            if left > 0:
                return left
        return max((self.now - running.granted) / 2, _LEAST_S)

    def _forget_due(self) -> None:
        """Curves that count no longer."""
        if len(self._known) > MANY and 0 <= self.now - self._renewed < FRESH_S:
            return
        is_other, self._remade, self._renewed = self._remade, False, self.now
        while self._due and self._due[0][0] <= self.now:
            key = heappop(self._due)[1]
            known = self._known.get(key)
            if known is not None and known[0] <= self.now:
                del self._known[key]
                is_other = True
        if is_other:
            self._bases.clear()


def _curve(cls: ActionClass, durations: Durations) -> Curve:
    resource, minimum = main_resource(cls), cls.demand.minimum
    least = _least(cls, resource)
    area_s = units_of(resource, least) * durations.seconds(cls, least)
    return Curve(resource, area_s, minimum.get(_CORES, 0), _of=(cls, durations))


def _least(cls: ActionClass, resource: str | None) -> int:
    return cls.demand.minimum.get(resource, 0) if resource is not None else 0


def main_resource(cls: ActionClass) -> str | None:
    """What an action of this class is wide in: its elastic resource, else cores, else whatever it counts."""
    demand = cls.demand
    if demand.elastic is not None:
        return demand.elastic.resource
    if demand.minimum.get(_CORES):
        return _CORES
    return next((name for name in sorted(demand.minimum) if name not in ("memory_mib", "disk_mib")), None)
