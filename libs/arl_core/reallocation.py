"""Who of the actions on one node gets how much of it, when those that run can be resized (SPAR-M).

Shortest remaining first, each as wide as is worth what it takes from those behind it; what is left goes where a unit
saves most.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from uuid import UUID

from arl_core.curves import Width, best_width

__all__ = ["Candidate", "reallocate"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """An action that runs or is about to start, and may have any of these widths from the `least`th on."""

    id: UUID
    widths: Sequence[Width]
    least: int = 0
    left: float = 1.0
    """The part of its work that is to be done."""
    straggles: bool = False
    """It chooses before the others, whatever is expected of it."""

    @property
    def rest_s(self) -> float:
        """At its smallest width."""
        return self.left * self.widths[0].seconds


def reallocate(
    candidates: Sequence[Candidate],
    *,
    units: float,
    waiting: float,
    price_factor: float,
    capacity: float,
    backlog_s: float,
) -> dict[UUID, int]:
    """The place in its `widths` of what each gets. Together they never get more than `units`.

    `units` have to suffice for all at their least. `waiting` more wait behind these for the same `capacity`.
    """
    order = sorted(candidates, key=lambda each: (not each.straggles, each.rest_s, each.id))
    chosen = {each.id: each.least for each in order}
    spare = units - sum(each.widths[each.least].units for each in order)
    for place, each in enumerate(order):
        behind = len(order) - 1 - place + waiting
        held = each.widths[each.least].units
        wanted = best_width(
            each.widths[each.least :],
            price=price_factor * behind / capacity,
            backlog_s=backlog_s,
            units=held + spare + _ROUNDING,
            left=each.left,
        )
        if wanted is not None:
            chosen[each.id] = each.widths.index(wanted)
            spare -= wanted.units - held
    _spend(order, chosen, spare)
    return chosen


def _spend(candidates: Sequence[Candidate], chosen: dict[UUID, int], spare: float) -> None:
    by_id = {each.id: each for each in candidates}
    steps = [step for each in candidates if (step := _next_step(each, chosen[each.id])) is not None]
    heapify(steps)
    while steps and spare > _ROUNDING:
        _, id, more = heappop(steps)
        if more > spare + _ROUNDING:
            continue
        spare -= more
        chosen[id] += 1
        if (step := _next_step(by_id[id], chosen[id])) is not None:
            heappush(steps, step)


def _next_step(each: Candidate, at: int) -> tuple[float, UUID, float] | None:
    """What the next width saves by unit, largest first."""
    if at + 1 >= len(each.widths):
        return None
    here, there = each.widths[at], each.widths[at + 1]
    more = there.units - here.units
    return (-each.left * (here.seconds - there.seconds) / more, each.id, more)


_ROUNDING = 1e-9
