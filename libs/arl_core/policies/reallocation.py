"""Distribution of a node's units among its actions if running actions can be resized (SPAR-M).

The action with the shortest remaining time chooses first; its degree of parallelism weighs its own gain against the
delay to those behind it. The remaining units go to the steps that save the most time per unit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from uuid import UUID

from arl_core.durations.curves import ParallelismOption, best_option

__all__ = ["ResizeCandidate", "reallocate"]


@dataclass(frozen=True, slots=True)
class ResizeCandidate:
    """A running or starting action that may have any of its options from `min_index` on."""

    id: UUID
    options: Sequence[ParallelismOption]
    min_index: int = 0
    remaining_work: float = 1.0
    """Fraction of the work that is left."""
    is_straggler: bool = False
    """True if the action chooses before the others regardless of its estimate."""

    @property
    def remaining_s(self) -> float:
        """Return the remaining seconds at the smallest degree of parallelism."""
        return self.remaining_work * self.options[0].seconds


def reallocate(
    candidates: Sequence[ResizeCandidate],
    *,
    units: float,
    queued: float,
    price_factor: float,
    capacity: float,
    backlog_s: float,
) -> dict[UUID, int]:
    """Return the index of the chosen option of each candidate. The sum never exceeds `units`.

    `units` must suffice for the minimum of all candidates. `queued` more actions wait for the same `capacity`.
    """
    order = sorted(candidates, key=lambda each: (not each.is_straggler, each.remaining_s, each.id))
    chosen = {each.id: each.min_index for each in order}
    spare = units - sum(each.options[each.min_index].units for each in order)
    for place, each in enumerate(order):
        behind = len(order) - 1 - place + queued
        held = each.options[each.min_index].units
        wanted = best_option(
            each.options[each.min_index :],
            price=price_factor * behind / capacity,
            backlog_s=backlog_s,
            units=held + spare + _ROUNDING,
            remaining_work=each.remaining_work,
        )
        if wanted is not None:
            chosen[each.id] = each.options.index(wanted)
            spare -= wanted.units - held
    _distribute_spare(order, chosen, spare)
    return chosen


def _distribute_spare(candidates: Sequence[ResizeCandidate], chosen: dict[UUID, int], spare: float) -> None:
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


def _next_step(each: ResizeCandidate, index: int) -> tuple[float, UUID, float] | None:
    """Return the negated saving per unit of the next option, the id and the added units; None after the last."""
    if index + 1 >= len(each.options):
        return None
    here, there = each.options[index], each.options[index + 1]
    more = there.units - here.units
    return (-each.remaining_work * (here.seconds - there.seconds) / more, each.id, more)


_ROUNDING = 1e-9
