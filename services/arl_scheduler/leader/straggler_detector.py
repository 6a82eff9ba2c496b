"""Detection of stragglers with each poll. Only the order of DoP increases depends on it."""

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from arl_core.domain.model import Fence, Resources
from arl_core.durations.curves import main_resource
from arl_core.durations.estimates import IGNORED_OVERRUN, DurationEstimates, straggler_limit_s
from arl_scheduler.index.allocations import AllocationTable

__all__ = ["DetectedStraggler", "StragglerDetector"]


@dataclass(frozen=True, slots=True)
class DetectedStraggler:
    """An action that has run for longer than `limit_s`."""

    fence: Fence
    node: int
    resources: Resources
    elapsed_s: float
    limit_s: float


class StragglerDetector:
    """The stragglers as of the last poll."""

    def __init__(self) -> None:
        self._detected: dict[Fence, DetectedStraggler] = {}

    def __len__(self) -> int:
        return len(self._detected)

    def longest(self, limit: int) -> list[DetectedStraggler]:
        """Return the stragglers that exceed their limits the most, in descending order."""
        order = sorted(self._detected.values(), key=lambda each: (-each.elapsed_s / each.limit_s, each.fence))
        return order[:limit]

    def __iter__(self) -> Iterator[DetectedStraggler]:
        return iter(self._detected.values())

    def find(self, action_id: UUID) -> list[DetectedStraggler]:
        """Return the straggler with this id, if it is one."""
        return [each for fence, each in self._detected.items() if fence.action_id == action_id]

    def update(self, allocations: AllocationTable, estimates: DurationEstimates, *, now: float) -> None:
        """Mark the stragglers among the allocations. An unchanged mark does not affect its node."""
        limits: dict[tuple[int, int], float | None] = {}
        found: dict[Fence, DetectedStraggler] = {}
        for hold in allocations:
            if hold.started is None or hold.cls is None:
                continue
            amounts = hold.mean_resources(until=now)
            key = (hold.cls.key, amounts.get(main_resource(hold.cls) or "", 0))
            if key not in limits:
                limits[key] = straggler_limit_s(estimates, hold.cls, amounts)
            limit_s = limits[key]
            times = (now - hold.started) / limit_s if limit_s else 0.0
            if limit_s and times > 1.0:
                found[hold.fence] = DetectedStraggler(
                    hold.fence, hold.node, hold.resources, now - hold.started, limit_s
                )
            allocations.set_overrun(hold, overrun=_overrun_level(times))
        self._detected = found


def _overrun_level(times: float) -> float:
    return IGNORED_OVERRUN if times > IGNORED_OVERRUN else float(times > 1.0)
