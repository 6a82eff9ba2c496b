"""The use of cores by the processes of one environment, and its weight: by a cgroup, or else by /proc."""

import math
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar

from arl_core.control.cpu_weights import CpuWeightRange
from arl_cpu.launcher.linux.cgroup_interface import Cgroup

__all__ = ["NICE_WEIGHTS", "CgroupCpu", "EnvironmentCpu", "ProcessTable", "ProcessTreeCpu", "task_sample"]

MAX_TASKS = 16
"""Threads whose state a sample reads at most, so that a program with many threads cannot make samples expensive."""
MAX_TABLE_AGE_S = 0.2
_TICK_US = 1_000_000 // os.sysconf("SC_CLK_TCK")
_STATE, _PARENT, _TIMES, _THREADS = 0, 1, slice(11, 15), 17
"""Positions in the fields of proc(5) after the name."""

NICE_WEIGHTS = CpuWeightRange(1, 1 << 20, per_core=1024)
"""Weights without a cgroup. Only their ratios matter: they become nice values."""
_WEIGHT_PER_NICE = 1.25
"""Ratio of the kernel's weights of two processes whose nice values differ by one."""
_MAX_NICE = 19

TaskT = TypeVar("TaskT")


class EnvironmentCpu(Protocol):
    """The processor time and the weight of one environment. Every method raises OSError if it has ended."""

    sample_interval_s: float
    """Shortest time between two samples that is worth their cost."""
    first_cpu_us: int
    """Processor time at the creation of this object, in microseconds."""

    def cpu_us(self) -> int:
        """Return the processor time of all its processes in microseconds."""
        ...

    def is_runnable(self) -> bool:
        """Return True if a task of it runs or waits for a core."""
        ...

    def set_weight(self, weight: int, *, largest: int) -> None:
        """Set its weight. `largest` is the largest weight of the attempts that share the cores."""


class CgroupCpu:
    """An environment with a cgroup."""

    sample_interval_s = 0.1

    def __init__(self, group: Cgroup) -> None:
        self._group = group
        self._samples = 0
        self._last_runnable: int | None = None
        """Thread that was runnable at the last sample. It is often runnable still, which makes the sample cheap."""
        self.first_cpu_us = group.cpu_us()

    def cpu_us(self) -> int:
        return self._group.cpu_us()

    def is_runnable(self) -> bool:
        if self._last_runnable is not None and _is_thread_runnable(self._last_runnable, self._last_runnable):
            return True
        self._samples += 1
        tasks = task_sample(self._group.tasks(), self._samples)
        self._last_runnable = next((task for task in tasks if _is_thread_runnable(task, task)), None)
        return self._last_runnable is not None

    def set_weight(self, weight: int, *, largest: int) -> None:
        del largest
        self._group.set_weight(weight)


@dataclass(frozen=True, slots=True)
class _ProcessRow:
    parent: int
    is_runnable: bool
    """State of the first thread."""
    threads: int
    cpu_us: int
    """Processor time of it and of its children that have been reaped."""


class ProcessTable:
    """All processes of the host. One reading serves all environments for a moment."""

    def __init__(self) -> None:
        self._rows: dict[int, _ProcessRow] = {}
        self._children: dict[int, list[int]] = {}
        self._read_at = -math.inf

    def tree(self, root: int) -> dict[int, _ProcessRow]:
        """Return the process and all below it. Empty if it has ended or began after the last reading."""
        if time.monotonic() - self._read_at > MAX_TABLE_AGE_S:
            self._read()
        found: dict[int, _ProcessRow] = {}
        frontier = [root]
        while frontier:
            pid = frontier.pop()
            if pid in self._rows and pid not in found:
                found[pid] = self._rows[pid]
                frontier += self._children.get(pid, ())
        return found

    def _read(self) -> None:
        self._read_at = time.monotonic()
        self._rows, self._children = {}, {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                fields = _stat_fields(f"/proc/{name}/stat")
                is_runnable = fields[_STATE] == b"R"
                row = _ProcessRow(int(fields[_PARENT]), is_runnable, int(fields[_THREADS]), _cpu_us(fields))
                self._rows[int(name)] = row
                self._children.setdefault(row.parent, []).append(int(name))


class ProcessTreeCpu:
    """An environment without a cgroup: the processes below its first one. Its weight becomes a nice value.

    Best effort: an ordinary user cannot lower a nice value again, and with autogroups the kernel compares nice values
    only within a session.
    """

    sample_interval_s = 0.5

    def __init__(self, table: ProcessTable, root: int, *, nice_above: int) -> None:
        """Create it for the processes below `root`. Their nice value is `nice_above` higher. Raises OSError."""
        self._table, self._root = table, root
        self._samples = 0
        self._base_nice = os.getpriority(os.PRIO_PROCESS, root) + nice_above
        self._nice = self._base_nice
        self.first_cpu_us = _cpu_us(_stat_fields(f"/proc/{root}/stat"))

    def cpu_us(self) -> int:
        return sum(row.cpu_us for row in self._table.tree(self._root).values())

    def is_runnable(self) -> bool:
        self._samples += 1
        rows = self._table.tree(self._root)
        if any(row.is_runnable for row in rows.values()):
            return True
        threads = [(pid, thread) for pid, row in rows.items() if row.threads > 1 for thread in _threads(pid)]
        return any(_is_thread_runnable(*each) for each in task_sample(threads, self._samples))

    def set_weight(self, weight: int, *, largest: int) -> None:
        steps = round(math.log(max(1.0, largest / weight), _WEIGHT_PER_NICE))
        nice = min(_MAX_NICE, self._base_nice + steps)
        if nice == self._nice:
            return
        # The first process keeps its nice value, so that the next attempt begins with it.
        for pid in self._table.tree(self._root).keys() - {self._root}:
            self._nice = nice
            for thread in _threads(pid)[:MAX_TASKS]:
                with suppress(PermissionError, ProcessLookupError):
                    os.setpriority(os.PRIO_PROCESS, thread, nice)


def task_sample(tasks: Sequence[TaskT], number: int) -> Sequence[TaskT]:
    """Return at most `MAX_TASKS` of the tasks. Samples with different numbers have different ones, evenly spread."""
    step = -(-len(tasks) // MAX_TASKS)
    return tasks[number % step :: step] if step > 1 else tasks


def _is_thread_runnable(process: int, thread: int) -> bool:
    """Return True if the thread runs or waits for a core. Any thread of the process may stand for `process`."""
    with suppress(OSError):
        return _stat_fields(f"/proc/{process}/task/{thread}/stat")[_STATE] == b"R"
    return False


def _stat_fields(path: str) -> list[bytes]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096).rpartition(b")")[2].split()
    finally:
        os.close(fd)


def _cpu_us(fields: Sequence[bytes]) -> int:
    """Return the processor time of a process and of its children that have been reaped."""
    return sum(map(int, fields[_TIMES])) * _TICK_US


def _threads(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    return []
