"""CPU time of process trees, from /proc."""

import os
from collections import defaultdict
from pathlib import Path

__all__ = ["own_cpu_s", "tree_cpu_s"]

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


def own_cpu_s() -> float:
    """Of this process, without its children."""
    times = os.times()
    return times.user + times.system


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
