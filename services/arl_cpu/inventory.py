"""What this node offers."""

import os
from pathlib import Path

from arl_cpu.settings import CpuSettings

__all__ = ["capacity_of", "cores_of"]

RESERVE_FROM_CORES = 8
MEMORY_SHARE = 0.9


def cores_of(settings: CpuSettings) -> tuple[int, ...]:
    """The cores that actions may use. Below 8 none is reserved for the services, from there on one."""
    if settings.driver == "simulated":
        return tuple(range(settings.cpu_cores or 2))
    cores = sorted(os.sched_getaffinity(0))
    reserve = settings.cpu_reserve
    if reserve is None:
        reserve = 1 if len(cores) >= RESERVE_FROM_CORES else 0
    offered = cores[min(reserve, len(cores) - 1) :]
    return tuple(offered[: settings.cpu_cores] if settings.cpu_cores else offered)


def capacity_of(settings: CpuSettings, cores: tuple[int, ...]) -> dict[str, int]:
    """Working directories lie in memory, so there is as much disk as memory and both are bounded."""
    memory = settings.memory_mib or int(_memory_mib() * MEMORY_SHARE)
    if settings.driver == "simulated":
        memory = settings.memory_mib or 1 << 30
    return {"cpu_milli": 1000 * len(cores), "memory_mib": memory, "disk_mib": memory}


def _memory_mib() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(limit).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return total >> 20
