"""Failpoints for tests: named points of the code that kill or stop the process. Unset failpoints do nothing."""

import logging
import os
import signal

__all__ = ["Failpoints"]

_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}

log = logging.getLogger(__name__)


class Failpoints:
    """The failpoints of `name=kill:N[,name=stop:N]`: SIGKILL at the N-th hit, or SIGSTOP at every N-th hit.

    The signal goes to this process. A hit of an unset name costs one dictionary look-up.
    """

    def __init__(self, setting: str = "") -> None:
        self._armed = dict(_parse_failpoint(part) for part in setting.split(",") if part.strip())
        self._hits = dict.fromkeys(self._armed, 0)
        if self._armed:
            log.warning("failpoints are active: %s", setting)

    def hit(self, name: str) -> None:
        """Count a hit of this failpoint; send its signal to this process if the hit is due."""
        if name not in self._armed:
            return
        number, count = self._armed[name]
        self._hits[name] += 1
        if self._hits[name] % count == 0:
            log.warning("failpoint %s: %s", name, number.name)
            os.kill(os.getpid(), number)


def _parse_failpoint(part: str) -> tuple[str, tuple[signal.Signals, int]]:
    name, _, what = part.strip().partition("=")
    action, _, count = what.partition(":")
    if not name or action not in _SIGNALS or not count.isdecimal() or int(count) < 1:
        raise ValueError(f"{part.strip()!r} is not a failpoint: write name=kill:N or name=stop:N with N of at least 1")
    return name, (_SIGNALS[action], int(count))
