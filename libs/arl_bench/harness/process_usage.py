"""CPU time, memory and errors of processes, from /proc and from their output."""

import os
import re
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

__all__ = [
    "descendants",
    "machine_cpu_s",
    "own_cpu_s",
    "pss_mib",
    "summarize_error",
    "tree_cpu_s",
    "tree_pss_mib",
    "tree_run_s",
]

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")

ERROR_LINE = re.compile(r"[\w.]+: ")
"""The last line of a traceback. Earlier lines have more words or are indented."""


def own_cpu_s() -> float:
    """Of this process, without its children."""
    times = os.times()
    return times.user + times.system


def machine_cpu_s() -> float:
    """Processor seconds of everything on this machine since it started: what was neither idle nor waited for a disk."""
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    ticks = dict(zip(names, map(int, Path("/proc/stat").read_text().split()[1:]), strict=False))
    return (sum(ticks.values()) - ticks["idle"] - ticks["iowait"]) * _TICK_S


def tree_cpu_s(root: int) -> float:
    """User and system seconds of a process and its descendants, the ones that ended and were waited for too.

    In steps of a clock tick (10 ms). A descendant that ends unwaited for is not in it.
    """
    children: dict[int, list[int]] = defaultdict(list)
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(entry.name)
        children[int(fields[1])].append(pid)
        ticks[pid] = sum(int(value) for value in fields[11:15])
    total, left = 0, [root]
    while left:
        pid = left.pop()
        total += ticks.get(pid, 0)
        left += children[pid]
    return total * _TICK_S


def tree_run_s(root: int) -> float:
    """Seconds that the living descendants of a process ran so far, to the nanosecond; of each its first thread's."""
    return sum(map(_scheduled_ns, descendants(root))) / 1e9


def descendants(root: int) -> list[int]:
    """Pids of every living process below `root`."""
    found: list[int] = []
    frontier = [root]
    while frontier:
        pid = frontier.pop()
        try:
            below = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except OSError:
            continue
        found += below
        frontier += below
    return found


def _scheduled_ns(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    except OSError:
        return 0


def summarize_error(output: str) -> str:
    """Of several errors the first: what a worker ended with is said before what its end led to.

    Errors of CUDA have several lines, of which the last ones are advice.
    """
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    return next((line for line in lines if ERROR_LINE.match(line)), lines[-1] if lines else "it ended without a word")


def pss_mib(pid: int) -> float:
    """Of what it shares with others, its part."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def tree_pss_mib(root: int) -> float:
    """Of a process and its living descendants, without those that end meanwhile."""
    total = 0.0
    for pid in (root, *descendants(root)):
        with suppress(OSError, StopIteration):
            total += pss_mib(pid)
    return total
