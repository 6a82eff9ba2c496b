"""Places at which a process may be made to die, for tests; without a setting each of them does nothing."""

import logging
import os
import signal

__all__ = ["Failpoints"]

log = logging.getLogger(__name__)


class Failpoints:
    """From `name=kill:N[,name=kill:N]`: SIGKILL to this very process at the N-th hit of that name.

    `hit` of any other name is one look into an empty dict.
    """

    def __init__(self, setting: str = "") -> None:
        self._left = dict(_parsed(part) for part in setting.split(",") if part.strip())
        if self._left:
            log.warning("failpoints are armed: %s", setting)

    def hit(self, name: str) -> None:
        if name not in self._left:
            return
        self._left[name] -= 1
        if self._left[name] == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def _parsed(part: str) -> tuple[str, int]:
    name, _, what = part.strip().partition("=")
    action, _, count = what.partition(":")
    if not name or action != "kill" or not count.isdecimal() or int(count) < 1:
        raise ValueError(f"{part.strip()!r} is no failpoint; write name=kill:N with N from 1")
    return name, int(count)
