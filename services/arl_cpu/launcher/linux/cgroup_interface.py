"""The interface to kernel accounting and limits, and the parts that both versions of cgroups share."""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from arl_core.control.cpu_weights import CpuWeightRange

__all__ = [
    "MAX_TASK_LIST_BYTES",
    "PERIOD_US",
    "WORKERS",
    "WORKERS_CPU_MILLI",
    "Cgroup",
    "CgroupTree",
    "CgroupUsage",
    "kill_and_remove",
    "quota_us",
    "wait_until",
    "weight_range",
]

PERIOD_US = 100_000
_MIN_QUOTA_US = 1_000
MAX_TASK_LIST_BYTES = 1 << 12
"""Part of a group's list of tasks that `Cgroup.tasks` reads."""
WORKERS = "file-workers"
"""Name of the group in which all file operations of the node share one core. Other groups have priority."""
WORKERS_CPU_MILLI = 1000


@dataclass(frozen=True, slots=True)
class CgroupUsage:
    """Monotonic counters of a cgroup."""

    cpu_us: int = 0
    oom_kills: int = 0
    pids_refused: int = 0


class Cgroup(Protocol):
    """The limits on one environment's processes."""

    @property
    def join_files(self) -> Sequence[str]:
        """Files to which a process writes its pid to join the group with all its later children."""
        ...

    worker_join_files: Sequence[str]
    """Files for a process of a file operation. It uses the CPU limit that all of them share, and where possible the
    environment's memory limit, but not its freezer.
    """

    def set_limits(self, *, memory_mib: int, pids: int) -> None: ...
    def set_cpu(self, *, cpu_milli: int | None, cores: Sequence[int]) -> None:
        """Set the quota and the cores. None removes the quota; no cores mean all of the node."""

    def set_weight(self, weight: int) -> None:
        """Set the weight among the groups of the tree, if it is not set already."""

    def freeze(self) -> bool:
        """Freeze the group. Return True once no process of it runs; the caller repeats until then."""
        ...

    def thaw(self) -> None: ...
    def usage(self) -> CgroupUsage: ...
    def cpu_us(self) -> int:
        """Return the processor time of `usage`."""
        ...

    def tasks(self) -> Sequence[int]:
        """Return ids of threads of the group. If it has very many, only the first ones."""
        ...

    def reset_peak(self) -> None: ...
    def peak_kib(self) -> int: ...
    def processes(self) -> list[int]: ...
    def kill(self) -> None: ...
    def remove(self) -> bool:
        """Remove the group. Return False while it contains a process."""
        ...


class CgroupTree(Protocol):
    """The parent directory of one launcher's groups."""

    version: str
    weights: CpuWeightRange
    """Weights of the groups in it."""

    def make(self, name: str) -> Cgroup: ...
    def sweep(self) -> None:
        """Kill and remove every group below, including those of earlier launchers."""
        ...

    def remove(self) -> None: ...


def quota_us(cpu_milli: int) -> int:
    """Return the quota of one period in microseconds."""
    return max(_MIN_QUOTA_US, cpu_milli * PERIOD_US // 1000)


def weight_range(least: int, most: int, *, per_core: int, cores: int) -> CpuWeightRange:
    """Return the weights of a node's groups: `per_core` for each core, or less if all cores would exceed `most`."""
    return CpuWeightRange(least, most, max(least, min(per_core, most // cores)))


def kill_and_remove(group: Cgroup) -> None:
    """Kill all processes of a group and remove it."""

    def gone() -> bool:
        with contextlib.suppress(OSError):  # some of its directories may be removed already
            group.kill()
        return group.remove()

    wait_until(gone, limit_s=2.0)


def wait_until(done: Callable[[], bool], limit_s: float) -> bool:
    """Wait until `done` returns True. Return False after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.0002)
    return True
