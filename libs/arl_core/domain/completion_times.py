"""The parts of the action completion time (ACT). The API and the metrics both use this definition."""

from dataclasses import dataclass
from datetime import datetime

__all__ = ["CompletionTimes", "seconds_between"]


@dataclass(frozen=True, slots=True)
class CompletionTimes:
    """The completion time of a settled action and its parts, in seconds."""

    act_s: float
    """From the creation of the action until it settled."""
    queue_s: float
    """Until the last grant, or until it settled if it was never granted."""
    run_s: float
    """Run time of the last attempt by the manager's monotonic clock; 0 if nothing ran."""
    overhead_s: float
    """The remainder, never negative."""

    @classmethod
    def from_timestamps(
        cls, created_at: datetime, granted_at: datetime | None, settled_at: datetime, run_us: int | None
    ) -> "CompletionTimes":
        """Compute the times from the timestamps of the row and the run time in microseconds."""
        act_s = seconds_between(created_at, settled_at)
        if granted_at is None:
            return cls(act_s, act_s, 0.0, 0.0)
        queue_s, run_s = seconds_between(created_at, granted_at), (run_us or 0) / 1e6
        return cls(act_s, queue_s, run_s, max(0.0, round(act_s - queue_s - run_s, 6)))


def seconds_between(start: datetime, end: datetime) -> float:
    """Return the seconds between two timestamps, in microsecond resolution."""
    return round((end - start).total_seconds(), 6)
