"""Kernel accounting and limits for each environment: cgroup v1, v2 or none behind one interface."""

import os
from collections.abc import Sequence
from pathlib import Path

from arl_cpu.launcher.linux import cgroup_v1
from arl_cpu.launcher.linux.cgroup_files import (
    read_counter,
    read_task_ids,
    remove_directory,
    write_file,
    write_if_exists,
)
from arl_cpu.launcher.linux.cgroup_interface import (
    MAX_TASK_LIST_BYTES,
    PERIOD_US,
    WORKERS,
    WORKERS_CPU_MILLI,
    Cgroup,
    CgroupTree,
    CgroupUsage,
    kill_and_remove,
    quota_us,
    wait_until,
    weight_range,
)

__all__ = ["Cgroup", "CgroupTree", "CgroupUsage", "NoCgroup", "find_cgroup_tree", "wait_until"]

_DEFAULT_WEIGHT, _MIN_WEIGHT, _MAX_WEIGHT = 100, 1, 10_000
_GROUP_WEIGHT_PER_CORE = 1000
_WEIGHT_PER_CORE, _WORKERS_WEIGHT = 10, 1
"""A tenth of the default, so that sandboxes cannot starve the services next to them; file operations have less.

The kernel divides the weight of a group among the cores on which it runs. The services run on few cores, so the weight
of the tree grows with the cores of the node, and that of the launcher's own group too.
"""
_V2_CONTROLLERS = ("cpu", "cpuset", "memory", "pids")


class NoCgroup:
    """An environment without cgroups: nothing is limited or counted."""

    worker_join_files: Sequence[str] = ()

    @property
    def join_files(self) -> Sequence[str]:
        return ()

    def set_limits(self, *, memory_mib: int, pids: int) -> None:
        del memory_mib, pids

    def set_cpu(self, *, cpu_milli: int | None, cores: Sequence[int]) -> None:
        del cpu_milli, cores

    def set_weight(self, weight: int) -> None:
        del weight

    def freeze(self) -> bool:
        return True

    def thaw(self) -> None: ...
    def usage(self) -> CgroupUsage:
        return CgroupUsage()

    def cpu_us(self) -> int:
        return 0

    def tasks(self) -> Sequence[int]:
        return ()

    def reset_peak(self) -> None: ...
    def peak_kib(self) -> int:
        return 0

    def processes(self) -> list[int]:
        return []

    def kill(self) -> None: ...
    def remove(self) -> bool:
        return True


def find_cgroup_tree(prefix: str) -> CgroupTree | None:
    """Prepare `tangram/<prefix>` in a hierarchy that this process may write. Return None if there is none."""
    mounts = _cgroup_mounts()
    try:
        if all(name in mounts for name in cgroup_v1.CONTROLLERS):
            return cgroup_v1.CgroupV1Tree({name: Path(mounts[name]) for name in cgroup_v1.CONTROLLERS}, prefix)
        if "v2" in mounts:
            return CgroupV2Tree(Path(mounts["v2"]), prefix)
    except OSError:
        return None
    return None


class CgroupV2Tree:
    """A tree with one directory for all controllers: root uses the top, a user a delegated cgroup."""

    version = "v2"

    def __init__(self, mount: Path, prefix: str) -> None:
        base = mount if os.geteuid() == 0 else mount / _own_v2_path().lstrip("/")
        if not set(_V2_CONTROLLERS) <= set((base / "cgroup.controllers").read_text().split()):
            raise OSError(f"{base} lacks controllers")
        self._root = base / "tangram" / prefix
        self._root.mkdir(parents=True, exist_ok=True)
        if os.geteuid() != 0:
            # A cgroup that delegates controllers may contain no process.
            leaf = base / "launcher"
            leaf.mkdir(exist_ok=True)
            write_file(leaf / "cgroup.procs", os.getpid())
        cores = len(os.sched_getaffinity(0))
        self.weights = weight_range(_MIN_WEIGHT, _MAX_WEIGHT, per_core=_GROUP_WEIGHT_PER_CORE, cores=cores)
        for directory in (base, self._root.parent, self._root):
            write_file(directory / "cgroup.subtree_control", " ".join(f"+{name}" for name in _V2_CONTROLLERS))
        write_file(self._root / "cpu.weight", min(_MAX_WEIGHT, _WEIGHT_PER_CORE * cores))
        if os.geteuid() != 0:
            write_file(base / "launcher" / "cpu.weight", min(_MAX_WEIGHT, _DEFAULT_WEIGHT * cores))

    def make(self, name: str) -> "CgroupV2":
        group = CgroupV2(self._root / name)
        group.worker_join_files = self._worker_join_files()
        return group

    def _worker_join_files(self) -> list[str]:
        """Return the file of the shared group. The memory of an operation is not limited by the environment's group."""
        path = self._root / WORKERS
        if not path.exists():
            CgroupV2(path).set_cpu(cpu_milli=WORKERS_CPU_MILLI, cores=())
            write_file(path / "cpu.weight", _WORKERS_WEIGHT)
        return [f"{path}/cgroup.procs"]

    def sweep(self) -> None:
        for path in self._root.glob("*/"):
            kill_and_remove(self.make(path.name))

    def remove(self) -> None:
        remove_directory(self._root / WORKERS)
        remove_directory(self._root)
        remove_directory(self._root.parent)


class CgroupV2:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.worker_join_files: Sequence[str] = ()
        self._weight = _DEFAULT_WEIGHT
        path.mkdir(exist_ok=True)

    @property
    def join_files(self) -> Sequence[str]:
        return (f"{self._path}/cgroup.procs",)

    def set_limits(self, *, memory_mib: int, pids: int) -> None:
        write_file(self._path / "memory.max", memory_mib << 20)
        write_if_exists(self._path / "memory.swap.max", 0)
        write_file(self._path / "pids.max", pids)

    def set_cpu(self, *, cpu_milli: int | None, cores: Sequence[int]) -> None:
        quota = quota_us(cpu_milli) if cpu_milli is not None else "max"
        write_file(self._path / "cpu.max", f"{quota} {PERIOD_US}")
        write_file(self._path / "cpuset.cpus", ",".join(map(str, cores)) or "\n")

    def set_weight(self, weight: int) -> None:
        if weight != self._weight:
            write_file(self._path / "cpu.weight", weight)
            self._weight = weight

    def freeze(self) -> bool:
        write_file(self._path / "cgroup.freeze", 1)
        return read_counter(self._path / "cgroup.events", "frozen") == 1

    def thaw(self) -> None:
        write_file(self._path / "cgroup.freeze", 0)

    def usage(self) -> CgroupUsage:
        return CgroupUsage(
            cpu_us=self.cpu_us(),
            oom_kills=read_counter(self._path / "memory.events", "oom_kill"),
            pids_refused=read_counter(self._path / "pids.events", "max"),
        )

    def cpu_us(self) -> int:
        return read_counter(self._path / "cpu.stat", "usage_usec")

    def tasks(self) -> Sequence[int]:
        return read_task_ids(self._path / "cgroup.threads", MAX_TASK_LIST_BYTES)

    def reset_peak(self) -> None:
        """Do nothing: `memory.peak` covers the life of the group, and a reset is not portable."""

    def peak_kib(self) -> int:
        peak = self._path / "memory.peak"
        return int(peak.read_text()) >> 10 if peak.exists() else 0

    def processes(self) -> list[int]:
        return [int(pid) for pid in (self._path / "cgroup.procs").read_text().split()]

    def kill(self) -> None:
        write_file(self._path / "cgroup.kill", 1)
        self.thaw()

    def remove(self) -> bool:
        return remove_directory(self._path)


def _cgroup_mounts() -> dict[str, str]:
    found: dict[str, str] = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup2":
            found.setdefault("v2", where)
        elif kind == "cgroup":
            found.update({name: where for name in options.split(",") if name in cgroup_v1.CONTROLLERS})
    return found


def _own_v2_path() -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            return line[3:]
    raise OSError("this process is in no cgroup of version 2")
