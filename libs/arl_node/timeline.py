"""The stages of an action on this node, collected while it runs and written into its result."""

import json
from typing import Any

__all__ = ["MAX_STAGES", "AttemptTimeline"]

MAX_STAGES = 64
"""Maximum number of stages of an action. If there are more, the first ones and the last one are written."""


class AttemptTimeline:
    """The stages of one action, in seconds of the monotonic clock. They are written in microseconds since arrival.

    `arl_trace.history` converts them to spans.
    """

    def __init__(self, arrived_at: float, *, resource: str = "device") -> None:
        self._arrived_at, self._wait_stage = arrived_at, f"{resource} wait"
        self._stages: list[dict[str, Any]] = []
        self._dropped = 0

    def end_wait(self, ended_at: float) -> None:
        """End the wait stage, which began at the arrival."""
        self.add(self._wait_stage, self._arrived_at, ended_at)

    def add(self, name: str, started_at: float, ended_at: float, **attributes: Any) -> None:
        """Add a stage. Attributes that are None are omitted."""
        if len(self._stages) == MAX_STAGES:
            self._stages.pop()
            self._dropped += 1
        known = {key: value for key, value in attributes.items() if value is not None}
        self._stages.append(
            {"name": name, "at_us": self._offset_us(started_at), "us": int((ended_at - started_at) * 1e6), **known}
        )

    def to_json(self, ended_at: float) -> str:
        """Return the stages as JSON, with the action's total time on this node."""
        if not self._stages:
            self.end_wait(ended_at)
        more = {"left_out": self._dropped} if self._dropped else {}
        return json.dumps({"us": self._offset_us(ended_at), "stages": self._stages, **more})

    def _offset_us(self, moment: float) -> int:
        return max(0, int((moment - self._arrived_at) * 1e6))
