"""No walls at all: a plain process in a directory of its own. Only by explicit choice, for code you wrote yourself."""

import os
import signal

from . import syscalls
from .processes import MAX_SWEEPS, Process, all_processes, descendants, signal_each, sweep
from .walls import Layers, Setup

__all__ = ["UnsafeLocal", "end_strays"]


class UnsafeLocal:
    """Finds what an action started by its ancestors: orphans become the agent's children."""

    enters = False
    write_area = ""

    def prepare(self, base_prefix: str, layers: Layers | None) -> None:
        del base_prefix, layers
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)

    def bind(self, setup: Setup) -> None:
        os.chdir(setup.workspace)

    def enter(self) -> None:
        pass

    def others(self) -> list[Process]:
        return descendants(os.getpid())

    def signal_all(self, number: int) -> None:
        sweep(self.others, number)

    def write_area_is_full(self) -> bool:
        return False

    def write_area_used_bytes(self) -> int:
        return 0

    def exceeded(self) -> str | None:
        return None


def end_strays(keep: set[int]) -> None:
    """Kill children of the launcher, a subreaper, that lost their agent, with all below them."""
    for _ in range(MAX_SWEEPS):
        strays = [each for each in all_processes() if each.parent == os.getpid() and each.pid not in keep]
        if not strays:
            return
        for stray in strays:
            signal_each([stray, *descendants(stray.pid)], signal.SIGKILL)
