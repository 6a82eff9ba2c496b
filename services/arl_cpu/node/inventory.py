"""The resources and templates that this node offers."""

import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from arl_core.images.references import is_image_name
from arl_cpu.contract.executor import ExecutorState
from arl_cpu.settings import CpuSettings
from arl_cpu.templates.template_store import TemplateStore

__all__ = ["TemplateInventory", "node_capacity", "node_row", "read_numa_nodes", "usable_cores"]

NUMA_NODES = Path("/sys/devices/system/node")
MIN_CORES_FOR_RESERVE = 8
DEFAULT_MEMORY_SHARE = 0.9
_CLOCK_GRANULARITY_NS = 1_000_000_000

log = logging.getLogger(__name__)


def usable_cores(settings: CpuSettings) -> tuple[int, ...]:
    """Return the cores that actions may use. By default the services reserve one core if there are at least 8."""
    if settings.driver == "simulated":
        return tuple(range(settings.cpu_cores or 2))
    cores = sorted(os.sched_getaffinity(0))
    reserve = settings.cpu_reserve
    if reserve is None:
        reserve = 1 if len(cores) >= MIN_CORES_FOR_RESERVE else 0
    offered = cores[min(reserve, len(cores) - 1) :]
    return tuple(offered[: settings.cpu_cores] if settings.cpu_cores else offered)


def read_numa_nodes(cores: tuple[int, ...], listing: Path = NUMA_NODES) -> dict[int, int]:
    """Return the NUMA node of each core. Empty if there is only one node or the kernel does not list them."""
    found: dict[int, int] = {}
    for directory in listing.glob("node[0-9]*"):
        for core in _parse_core_ranges((directory / "cpulist").read_text()):
            if core in cores:
                found[core] = int(directory.name.removeprefix("node"))
    return found if len(set(found.values())) > 1 else {}


def node_capacity(settings: CpuSettings, cores: tuple[int, ...]) -> dict[str, int]:
    """Return the node's resources.

    Working directories are in memory, so `disk_mib` equals `memory_mib`; both are bounded.
    """
    memory = settings.memory_mib or int(_total_memory_mib() * DEFAULT_MEMORY_SHARE)
    if settings.driver == "simulated":
        memory = settings.memory_mib or 1 << 30
    return {"cpu_milli": 1000 * len(cores), "memory_mib": memory, "disk_mib": memory, **settings.resources}


def _parse_core_ranges(ranges: str) -> list[int]:
    """Parse a list of ranges in the kernel's format, such as `0-2,5`."""
    found: list[int] = []
    for part in ranges.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            found += range(int(first), int(last or first) + 1)
    return found


class TemplateInventory:
    """The templates of this node in addition to `host`. A scan costs one system call while nothing has changed."""

    def __init__(self, directory: Path | None, *, can_use: bool) -> None:
        self._store = TemplateStore(directory) if directory is not None and can_use else None
        self._seen_stamp: int | None = None
        self.published: list[dict[str, Any]] = []

    def scan(self) -> list[dict[str, Any]]:
        """Return the current templates. The caller stores the published ones in `published`."""
        if self._store is None or (stamp := self._store.modified_ns) == self._seen_stamp:
            return self.published
        # File system clocks are coarse: a file that changed within the last second may change again with the same time
        # stamp.
        self._seen_stamp = stamp if time.time_ns() - stamp > _CLOCK_GRANULARITY_NS else None
        try:
            for name, why in self._store.damaged_records().items():
                log.warning("the record of template %s cannot be read: %s", name, why)
            return [
                {"name": each.name, "digest": each.digest, "bytes": each.bytes}
                for each in self._store.list_templates()
                if not is_image_name(each.name)
            ]
        except (OSError, ValueError) as error:
            log.warning("the templates cannot be read: %s", error)
            return self.published


def _total_memory_mib() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(limit).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return total >> 20


def node_row(
    settings: CpuSettings,
    state: ExecutorState,
    capacity: Mapping[str, int],
    topology: Mapping[str, Any],
    templates: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the values of this node's row."""
    return {
        "name": settings.node_name,
        "kind": "cpu",
        "url": settings.url,
        "epoch": state.node_epoch,
        "driver": state.driver,
        "capacity": json.dumps(capacity),
        "topology": json.dumps(topology),
        "enforced": json.dumps([asdict(capability) for capability in state.capabilities]),
        "templates": json.dumps(templates),
    }
