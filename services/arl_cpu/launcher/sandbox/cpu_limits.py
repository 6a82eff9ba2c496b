"""The CPU limits of an environment's processes: quota, cores and weight, by its cgroup or else by affinity."""

import os
from contextlib import suppress

from arl_cpu.contract.executor import AttemptResize
from arl_cpu.launcher.cpu_sharing.environment_cpu import CgroupCpu, EnvironmentCpu, ProcessTable, ProcessTreeCpu
from arl_cpu.launcher.isolation.isolation import NICE_WITHOUT_CGROUP
from arl_cpu.launcher.linux.processes import pin_to_cores
from arl_cpu.launcher.sandbox.attempt import SandboxAttempt
from arl_cpu.launcher.sandbox.sandbox import Sandbox
from arl_cpu.launcher.sandbox.sandbox_host import SandboxHost

__all__ = ["SandboxCpu"]

_AGENT_CPU_MILLI = 1000
"""CPU of the agent itself if the attempt runs nothing."""
_PROCESS_TABLE = ProcessTable()


class SandboxCpu:
    """The CPU limits of the sandboxes of one environment. Methods raise OSError if the host refuses them."""

    def __init__(self, host: SandboxHost) -> None:
        self._host = host

    def apply(self, sandbox: Sandbox, attempt: SandboxAttempt, allocation: AttemptResize, *, is_for_all: bool) -> None:
        """Set quota, weight and cores.

        Without a cgroup, pin all processes or only the first, whose children inherit it.
        """
        sandbox.cgroup.set_cpu(cpu_milli=_quota_milli(attempt, allocation), cores=allocation.cores)
        if self._host.cgroup_tree is not None and attempt.spec.sharing is None:
            cores = (allocation.cpu_milli or _AGENT_CPU_MILLI) / 1000
            sandbox.cgroup.set_weight(self._host.cgroup_tree.weights.of_cores(cores))
        if self._host.cgroup_tree is not None or sandbox.pid is None:
            return
        cores_of_all = allocation.cores or os.sched_getaffinity(0)
        if is_for_all:
            pin_to_cores(sandbox.processes, cores_of_all)
        else:
            os.sched_setaffinity(sandbox.pid, cores_of_all)

    def change(self, sandbox: Sandbox, attempt: SandboxAttempt, allocation: AttemptResize) -> bool:
        """Change the allocation of an attempt. Return False if it could not be changed and is as before."""
        try:
            if attempt.started_at is not None:
                self.apply(sandbox, attempt, allocation, is_for_all=True)
        except OSError:
            with suppress(OSError):
                self.apply(sandbox, attempt, attempt.allocation, is_for_all=True)
            return False
        attempt.allocation = allocation
        return True

    def begin_sharing(self, sandbox: Sandbox, attempt: SandboxAttempt) -> None:
        """Begin to count the time of an attempt that shares cores, and set its weight."""
        if attempt.spec.sharing is not None and sandbox.pid is not None:
            attempt.begin_sharing(self._environment_cpu(sandbox, sandbox.pid))

    def raise_quota(self, sandbox: Sandbox, attempt: SandboxAttempt) -> None:
        """Raise the CPU quota for a kill: the agent shares it with the processes that it has to kill."""
        quota_milli = _quota_milli(attempt, attempt.allocation)
        with suppress(OSError):  # a failure only makes the kill slower
            raised_milli = max(quota_milli, 1000) if quota_milli is not None else None
            sandbox.cgroup.set_cpu(cpu_milli=raised_milli, cores=attempt.allocation.cores)

    def _environment_cpu(self, sandbox: Sandbox, pid: int) -> EnvironmentCpu:
        if self._host.cgroup_tree is not None:
            return CgroupCpu(sandbox.cgroup)
        nice_above = NICE_WITHOUT_CGROUP if self._host.driver.is_isolated else 0
        return ProcessTreeCpu(_PROCESS_TABLE, pid, nice_above=nice_above)


def _quota_milli(attempt: SandboxAttempt, allocation: AttemptResize) -> int | None:
    """Return the milli-cores that the attempt may use; None without a limit."""
    if attempt.spec.sharing is not None:
        return attempt.spec.sharing.limit_milli
    return allocation.cpu_milli or _AGENT_CPU_MILLI
