"""No isolation: a plain process in a separate directory. Only by explicit choice, for trusted code."""

import os
import signal

from arl_cpu.launcher.isolation.isolation import AgentSetup, TemplateLayers
from arl_cpu.launcher.linux import syscalls
from arl_cpu.launcher.linux.processes import (
    MAX_SWEEPS,
    ProcessInfo,
    all_processes,
    descendants,
    signal_each,
    signal_until_gone,
)

__all__ = ["UnsafeLocalIsolation", "kill_strays"]


class UnsafeLocalIsolation:
    """A driver that finds an action's processes by ancestry. Orphans become children of the agent."""

    confines_actions = False
    write_area = ""

    def prepare(self, base_prefix: str, layers: TemplateLayers | None) -> None:
        """Become the reaper of orphans."""
        del base_prefix, layers
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)

    def apply_setup(self, setup: AgentSetup) -> None:
        """Change to the working directory."""
        os.chdir(setup.workspace)

    def confine_action(self) -> None:
        """Do nothing: this driver isolates nothing."""

    def other_processes(self) -> list[ProcessInfo]:
        """Return the descendants of the agent."""
        return descendants(os.getpid())

    def signal_all(self, number: int) -> None:
        """Signal all descendants until no new one appears."""
        signal_until_gone(self.other_processes, number)

    def write_area_is_full(self) -> bool:
        return False

    def write_area_used_bytes(self) -> int:
        return 0

    def socket_bytes(self) -> int:
        """Return 0: the sockets of all environments are in one network namespace."""
        return 0

    def exceeded_limit(self) -> str | None:
        return None


def kill_strays(excluded_pids: set[int]) -> None:
    """Kill children of the launcher, a subreaper, that lost their agent, and all their descendants."""
    for _ in range(MAX_SWEEPS):
        strays = [each for each in all_processes() if each.parent_pid == os.getpid() and each.pid not in excluded_pids]
        if not strays:
            return
        for stray in strays:
            signal_each([stray, *descendants(stray.pid)], signal.SIGKILL)
