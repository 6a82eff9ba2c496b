"""What an action's time on this node was spent on: kept while it is here, and written into its result."""

import json
from typing import Any

__all__ = ["KEPT", "Timeline"]

KEPT = 64
"""Stages of an action. Of more, the first ones are written and the last."""


class Timeline:
    """Of one action, in seconds of the monotonic clock; in microseconds since it came where it is written.

    `arl_trace.life` makes spans of it.
    """

    def __init__(self, came: float, *, waits_for: str = "device") -> None:
        self._came, self._wait = came, f"{waits_for} wait"
        self._stages: list[dict[str, Any]] = []
        self._left_out = 0

    def wait_ended(self, ended: float) -> None:
        """Nothing was done for it before."""
        self.add(self._wait, self._came, ended)

    def add(self, name: str, begun: float, ended: float, **about: Any) -> None:
        """What is None in `about` is not written."""
        if len(self._stages) == KEPT:
            self._stages.pop()
            self._left_out += 1
        known = {key: value for key, value in about.items() if value is not None}
        self._stages.append({"name": name, "at_us": self._us(begun), "us": int((ended - begun) * 1e6), **known})

    def written(self, ended: float) -> str:
        """With the action's whole time on this node."""
        if not self._stages:
            self.wait_ended(ended)
        more = {"left_out": self._left_out} if self._left_out else {}
        return json.dumps({"us": self._us(ended), "stages": self._stages, **more})

    def _us(self, moment: float) -> int:
        return max(0, int((moment - self._came) * 1e6))
