"""Memory of processes, from /proc."""

from contextlib import suppress
from pathlib import Path

from arl_bench.harness.process_usage import descendants

__all__ = ["pss_mib", "tree_pss_mib"]


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
