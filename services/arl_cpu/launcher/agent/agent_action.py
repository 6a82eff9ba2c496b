"""The running action of an agent, and the state of its first process."""

import contextlib
import os
import resource
import signal
from dataclasses import replace

from arl_cpu.launcher.agent.agent_request import AgentRequest
from arl_cpu.launcher.agent.source_file import PlacedSource
from arl_cpu.launcher.isolation.users import SandboxUser, acting_as
from arl_cpu.launcher.linux.processes import ProcessInfo
from arl_cpu.launcher.linux.syscalls import detach_tracee

__all__ = ["AgentAction", "children_cpu_us", "is_withheld", "joined", "release_tracee"]


class AgentAction:
    """The running action."""

    def __init__(
        self, earlier_processes: frozenset[ProcessInfo], request: AgentRequest, user: SandboxUser | None
    ) -> None:
        self.earlier_processes, self.request, self.user = earlier_processes, request, user
        self.pid = 0
        self.shell_pid = int(request.argv[0]) if request.mode == "watch" and request.argv else 0
        self.shell_status: int | None = None
        """Wait status of the session's shell, if it has ended during the action."""
        self.peak_kib = 0
        self.is_over_memory = False
        self.exceeded_limit: str | None = None
        self.cpu_us_before = children_cpu_us()
        self.source: PlacedSource | None = None
        self.note: str | None = None
        """Note about damage by earlier actions that was repaired."""

    def place_source(self) -> None:
        """Write the source to a file and let the interpreter run that file. Raises OSError."""
        with acting_as(self.user):
            self.source = PlacedSource(self.request)
        self.request = replace(self.request, argv=(*self.request.argv, self.source.path))

    def remove_source(self) -> None:
        if self.source is not None:
            self.source.remove()


def is_withheld(pid: int) -> bool:
    """Return True if a killed child cannot be reaped, because a tracer that an earlier action left has not done so."""
    with contextlib.suppress(ChildProcessError):  # it was reaped
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    return False


def release_tracee(pid: int, status: int) -> None:
    """Release a process with the signal that stopped it. It has declared its parent, the agent, its tracer."""
    stopped_by = os.WSTOPSIG(status)
    with contextlib.suppress(OSError):  # it was killed meanwhile
        detach_tracee(pid, 0 if status >> 16 or stopped_by == signal.SIGTRAP else stopped_by)


def children_cpu_us() -> int:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return int((usage.ru_utime + usage.ru_stime) * 1_000_000)


def joined(*texts: str | None) -> str | None:
    return "; ".join(filter(None, texts)) or None
