"""Who straggles among those that run, looked at with each poll; only what is widened first depends on it."""

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from arl_core.curves import main_resource
from arl_core.estimates import Estimates
from arl_core.fence import Fence
from arl_core.model import Amounts
from arl_core.stragglers import UNCOUNTED, straggling_after_s
from arl_scheduler.holds import Holds

__all__ = ["Straggler", "Straggling"]


@dataclass(frozen=True, slots=True)
class Straggler:
    """An action that runs for longer than `limit_s`."""

    fence: Fence
    node: int
    amounts: Amounts
    elapsed_s: float
    limit_s: float


class Straggling:
    def __init__(self) -> None:
        self._known: dict[Fence, Straggler] = {}

    def __len__(self) -> int:
        return len(self._known)

    def longest(self, limit: int) -> list[Straggler]:
        """Those that are the furthest beyond their limits, first."""
        order = sorted(self._known.values(), key=lambda each: (-each.elapsed_s / each.limit_s, each.fence))
        return order[:limit]

    def __iter__(self) -> Iterator[Straggler]:
        return iter(self._known.values())

    def of(self, action_id: UUID) -> list[Straggler]:
        """It, if it is one."""
        return [each for fence, each in self._known.items() if fence.action_id == action_id]

    def look(self, holds: Holds, estimates: Estimates, *, now: float) -> None:
        """Mark those that run; a mark that does not change stirs no node."""
        limits: dict[tuple[int, int], float | None] = {}
        found: dict[Fence, Straggler] = {}
        for hold in holds:
            if hold.started is None or hold.cls is None:
                continue
            amounts = hold.mean_amounts(until=now)
            key = (hold.cls.key, amounts.get(main_resource(hold.cls) or "", 0))
            if key not in limits:
                limits[key] = straggling_after_s(estimates, hold.cls, amounts)
            limit_s = limits[key]
            times = (now - hold.started) / limit_s if limit_s else 0.0
            if limit_s and times > 1.0:
                found[hold.fence] = Straggler(hold.fence, hold.node, hold.amounts, now - hold.started, limit_s)
            holds.mark(hold, overrun=_step(times))
        self._known = found


def _step(times: float) -> float:
    return UNCOUNTED if times > UNCOUNTED else float(times > 1.0)
