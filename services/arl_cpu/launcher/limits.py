"""Limits that a process sets on itself and all it will start, before it lets go of the right to raise them."""

import os
import resource

from .walls import Setup

__all__ = ["limit", "yield_cores"]

_NICE_WITHOUT_CGROUP = 10
_OPEN_FILES = 4096
_MIB = 1 << 20
_MIN_FILE_MIB = 16


def limit(setup: Setup, *, processes: int) -> None:
    """Files in any case; memory and `processes` of this uid only where no cgroup looks after them."""
    _cap(resource.RLIMIT_CORE, 0)
    _cap(resource.RLIMIT_NOFILE, _OPEN_FILES)
    _cap(resource.RLIMIT_FSIZE, max(setup.disk_mib, _MIN_FILE_MIB) * _MIB)
    if setup.has_cgroup:
        return
    _cap(resource.RLIMIT_NPROC, processes)
    # Private writable memory only: address space would count what a runtime merely reserves.
    _cap(resource.RLIMIT_DATA, setup.memory_mib * _MIB)


def yield_cores() -> None:
    """To this system's own processes; where a cgroup shares the cores out it is not needed."""
    os.nice(_NICE_WITHOUT_CGROUP)


def _cap(kind: int, wanted: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(kind, (value, value))
