"""How wide an action should be: its own time against the time that its units would save others.

«Units» are cores or devices, whatever the elastic resource counts; times are seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from arl_core.model import ActionClass, Amounts, Running
from arl_core.snapshot import Durations

__all__ = ["Width", "area_s", "best_width", "expected_s", "main_resource", "remaining_s", "units_of", "widths_of"]

_MILLI_CORES, _PER_CORE = "cpu_milli", 1000


@dataclass(frozen=True, slots=True)
class Width:
    """One choice of the elastic resource, and how long the action is expected to take with it."""

    amount: int
    units: float
    seconds: float


def main_resource(cls: ActionClass) -> str | None:
    """What an action of this class is wide in: its elastic resource, else cores, else whatever it counts first."""
    demand = cls.demand
    if demand.elastic is not None:
        return demand.elastic.resource
    if demand.minimum.get(_MILLI_CORES):
        return _MILLI_CORES
    return next((name for name in sorted(demand.minimum) if name not in ("memory_mib", "disk_mib")), None)


def units_of(resource: str | None, amount: int) -> float:
    return amount / _PER_CORE if resource == _MILLI_CORES else float(amount)


def widths_of(cls: ActionClass, estimates: Durations) -> tuple[Width, ...]:
    """In rising order, each faster than all before it: more that brings nothing is no choice."""
    resource, elastic = main_resource(cls), cls.demand.elastic
    if elastic is None:
        amount = cls.demand.minimum.get(resource, 0) if resource is not None else 0
        return (Width(amount, units_of(resource, amount), estimates.seconds(cls, amount)),)
    widths: list[Width] = []
    for amount in elastic.amounts:
        seconds = estimates.seconds(cls, amount)
        if not widths or seconds < widths[-1].seconds:
            widths.append(Width(amount, units_of(resource, amount), seconds))
    return tuple(widths)


def area_s(widths: Sequence[Width]) -> float:
    """Unit-seconds at the smallest width."""
    return widths[0].units * widths[0].seconds


def expected_s(cls: ActionClass, amounts: Amounts, estimates: Durations) -> float:
    """How long an action of this class is expected to take with these amounts."""
    resource = main_resource(cls)
    return estimates.seconds(cls, amounts.get(resource, 0) if resource is not None else 0)


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


def remaining_s(running: Running, estimates: Durations, *, now: float) -> float:
    """What is expected to be left. One that has overrun is taken to need half as long again (Tsafrir et al. 2007)."""
    cls = running.cls
    if cls is None:
        return max((now - running.granted) / 2, _LEAST_S)
    left = running.left * expected_s(cls, running.amounts, estimates) - (now - running.since)
    return left if left > 0 else max((now - running.granted) / 2, _LEAST_S)


_LEAST_S = 0.05
