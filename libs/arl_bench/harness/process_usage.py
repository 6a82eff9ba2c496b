"""CPU time, memory and errors of processes, from /proc and from their output."""

import os
import re
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

__all__ = [
    "descendants",
    "loopback_bytes",
    "machine_cpu_s",
    "own_cpu_s",
    "process_cpu_s",
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
    """Return the CPU seconds of this process without its children."""
    times = os.times()
    return times.user + times.system


def machine_cpu_s() -> float:
    """Return the CPU seconds of the machine since boot, without idle time and waits for disks."""
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    ticks = dict(zip(names, map(int, Path("/proc/stat").read_text().split()[1:]), strict=False))
    return (sum(ticks.values()) - ticks["idle"] - ticks["iowait"]) * _TICK_S


def loopback_bytes() -> int:
    """Return the bytes that all processes of this machine have sent to each other over TCP and UDP since boot."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    return next(int(line.partition(":")[2].split()[0]) for line in lines if line.strip().startswith("lo:"))


def process_cpu_s(pid: int) -> float:
    """Return user and system seconds of a process with all its threads, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def tree_cpu_s(root: int) -> float:
    """Return user and system seconds of a process and its descendants, including ended ones that were reaped.

    The resolution is a clock tick (10 ms). Descendants that ended without being reaped are not included.
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
    """Return the run time of the living descendants in seconds, to the nanosecond. Only first threads count."""
    return sum(map(_scheduled_ns, descendants(root))) / 1e9


def descendants(root: int) -> list[int]:
    """Return the pids of all living processes below `root`."""
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
    """Return the first error in the output. A worker's own error is printed before its consequences.

    CUDA errors have several lines; the last ones are advice.
    """
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    return next((line for line in lines if ERROR_LINE.match(line)), lines[-1] if lines else "it ended without a word")


def pss_mib(pid: int) -> float:
    """Return the proportional set size of a process: shared memory counts partially."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def tree_pss_mib(root: int) -> float:
    """Return the proportional set size of a process and its descendants, without those that end during the call."""
    total = 0.0
    for pid in (root, *descendants(root)):
        with suppress(OSError, StopIteration):
            total += pss_mib(pid)
    return total
