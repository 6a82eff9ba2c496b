"""Limits that a process sets on itself and all it will start, before it lets go of the right to raise them."""

import os
import resource

from arl_cpu.launcher.isolation.isolation import AgentSetup

__all__ = ["apply_limits", "lower_priority"]

_NICE_WITHOUT_CGROUP = 10
_OPEN_FILES = 4096
_MIB = 1 << 20
_MIN_FILE_MIB = 16


def apply_limits(setup: AgentSetup, *, processes: int) -> None:
    """Files in any case; memory and `processes` of this uid only where no cgroup looks after them."""
    _set_limit(resource.RLIMIT_CORE, 0)
    _set_limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    _set_limit(resource.RLIMIT_FSIZE, max(setup.disk_mib, _MIN_FILE_MIB) * _MIB)
    if setup.has_cgroup:
        return
    _set_limit(resource.RLIMIT_NPROC, processes)
    # Private writable memory only: address space would count what a runtime merely reserves.
    _set_limit(resource.RLIMIT_DATA, setup.memory_mib * _MIB)


def lower_priority() -> None:
    """To this system's own processes; where a cgroup shares the cores out it is not needed."""
    os.nice(_NICE_WITHOUT_CGROUP)


def _set_limit(kind: int, maximum: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = maximum if hard == resource.RLIM_INFINITY else min(maximum, hard)
    resource.setrlimit(kind, (value, value))
