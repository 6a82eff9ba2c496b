"""Accounting and limits by cgroup v1, which has one hierarchy or more."""

import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from arl_cpu.launcher.linux.cgroup_files import (
    read_counter,
    read_file,
    read_task_ids,
    remove_directory,
    send_signal,
    write_file,
    write_if_exists,
)
from arl_cpu.launcher.linux.cgroup_interface import (
    MAX_TASK_LIST_BYTES,
    WORKERS,
    WORKERS_CPU_MILLI,
    CgroupUsage,
    kill_and_remove,
    quota_us,
    weight_range,
)

__all__ = ["CONTROLLERS", "CgroupV1Tree"]

_DEFAULT_SHARES, _MIN_SHARES, _MAX_SHARES = 1024, 2, 1 << 18
_SHARES_PER_CORE, _WORKERS_SHARES = 102, 2
"""A tenth of what a process of a service has on its core, so that sandboxes cannot starve the services next to them.

The kernel divides the shares of a group among the cores on which it runs; a process has all of its own on its core. So
the shares of the tree grow with the cores. File operations have less.
"""
_NO_QUOTA = -1
_SOCKET_SHIFT, _MIN_SOCKET_BYTES = 3, 16 << 20
"""Memory for buffers of TCP and UDP, which cgroup v1 counts separately: an eighth of the memory, at least 16 MiB."""
_MAX_DROPPED_BYTES = 8 << 20
CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "pids", "freezer")
_V1_FILES = {
    "cpu.quota": "cpu.cfs_quota_us",
    "cpu.shares": "cpu.shares",
    "cpu.tasks": "tasks",
    "cpuacct.usage": "cpuacct.usage",
    "cpuset.cpus": "cpuset.cpus",
    "cpuset.mems": "cpuset.mems",
    "freezer.procs": "cgroup.procs",
    "freezer.state": "freezer.state",
    "memory.empty": "memory.force_empty",
    "memory.limit": "memory.limit_in_bytes",
    "memory.memsw": "memory.memsw.limit_in_bytes",
    "memory.oom": "memory.oom_control",
    "memory.peak": "memory.max_usage_in_bytes",
    "memory.sockets": "memory.kmem.tcp.limit_in_bytes",
    "memory.usage": "memory.usage_in_bytes",
    "pids.events": "pids.events",
    "pids.max": "pids.max",
}
"""File names by controller and purpose."""


class CgroupV1Tree:
    """A tree with one directory per controller."""

    version = "v1"

    def __init__(self, mounts: dict[str, Path], prefix: str) -> None:
        self._roots = {name: mount / "tangram" / prefix for name, mount in mounts.items()}
        for path in self._roots.values():
            path.mkdir(parents=True, exist_ok=True)
        top, parent = mounts["cpuset"], self._roots["cpuset"]
        for directory in (parent.parent, parent):
            for name in ("cpuset.cpus", "cpuset.mems"):
                write_file(directory / name, (top / name).read_text())
        cores = len(os.sched_getaffinity(0))
        self.weights = weight_range(_MIN_SHARES, _MAX_SHARES, per_core=_DEFAULT_SHARES, cores=cores)
        write_file(self._roots["cpu"] / "cpu.shares", min(_MAX_SHARES, _SHARES_PER_CORE * cores))
        self._cpus, self._mems = ((parent / name).read_text() for name in ("cpuset.cpus", "cpuset.mems"))
        # Several controllers may share a hierarchy.
        self._hierarchies = tuple({os.path.realpath(root): name for name, root in self._roots.items()}.values())

    def make(self, name: str) -> "CgroupV1":
        group = self._make(name)
        group.worker_join_files = self._worker_join_files(name)
        return group

    def _make(self, name: str) -> "CgroupV1":
        paths = {controller: root / name for controller, root in self._roots.items()}
        return CgroupV1(paths, [paths[controller] for controller in self._hierarchies], self._cpus, self._mems)

    def _worker_join_files(self, name: str) -> list[str]:
        """Return the files of the shared group for CPU and cores, and of the named group for memory and pids."""
        if not (self._roots["cpu"] / WORKERS).exists():
            workers = self._make(WORKERS)
            workers.set_cpu(cpu_milli=WORKERS_CPU_MILLI, cores=())
            write_file(self._roots["cpu"] / WORKERS / "cpu.shares", _WORKERS_SHARES)
        freezer = os.path.realpath(self._roots["freezer"])
        shared = {os.path.realpath(self._roots[controller]) for controller in ("cpu", "cpuacct", "cpuset")}
        directories = [self._roots[controller] for controller in self._hierarchies]
        return [
            f"{path / (WORKERS if os.path.realpath(path) in shared else name)}/cgroup.procs"
            for path in directories
            if os.path.realpath(path) != freezer
        ]

    def sweep(self) -> None:
        names = {path.name for root in self._roots.values() for path in root.glob("*/")}
        for name in sorted(names):
            kill_and_remove(self.make(name))

    def remove(self) -> None:
        for root in self._roots.values():
            remove_directory(root / WORKERS)
            remove_directory(root)
            remove_directory(root.parent)


class CgroupV1:
    def __init__(self, paths: dict[str, Path], directories: Sequence[Path], cpus: str, mems: str) -> None:
        self._directories, self._all_cores = directories, cpus
        self._weight = _DEFAULT_SHARES
        for path in directories:
            path.mkdir(exist_ok=True)
        # Strings, because building a Path costs more than the access.
        self._files = {name: f"{paths[name.partition('.')[0]]}/{file}" for name, file in _V1_FILES.items()}
        self._join_files = [f"{path}/cgroup.procs" for path in directories]
        self.worker_join_files: Sequence[str] = ()
        # A cpuset accepts no process before both are set.
        write_file(self._files["cpuset.mems"], mems)
        write_file(self._files["cpuset.cpus"], cpus)

    @property
    def join_files(self) -> Sequence[str]:
        return self._join_files

    def set_limits(self, *, memory_mib: int, pids: int) -> None:
        write_file(self._files["memory.limit"], memory_mib << 20)
        write_if_exists(self._files["memory.memsw"], memory_mib << 20)
        write_if_exists(self._files["memory.sockets"], max(memory_mib << 20 >> _SOCKET_SHIFT, _MIN_SOCKET_BYTES))
        write_file(self._files["pids.max"], pids)

    def set_cpu(self, *, cpu_milli: int | None, cores: Sequence[int]) -> None:
        # Writing the same value starts a new period, so that earlier usage does not count.
        write_file(self._files["cpu.quota"], quota_us(cpu_milli) if cpu_milli is not None else _NO_QUOTA)
        write_file(self._files["cpuset.cpus"], ",".join(map(str, cores)) or self._all_cores)

    def set_weight(self, weight: int) -> None:
        if weight != self._weight:
            write_file(self._files["cpu.shares"], weight)
            self._weight = weight

    def freeze(self) -> bool:
        state = self._files["freezer.state"]
        write_file(state, "FROZEN")
        return read_file(state) == "FROZEN\n"

    def thaw(self) -> None:
        write_file(self._files["freezer.state"], "THAWED")

    def usage(self) -> CgroupUsage:
        return CgroupUsage(
            cpu_us=self.cpu_us(),
            oom_kills=read_counter(self._files["memory.oom"], "oom_kill"),
            pids_refused=read_counter(self._files["pids.events"], "max"),
        )

    def cpu_us(self) -> int:
        return int(read_file(self._files["cpuacct.usage"])) // 1000

    def tasks(self) -> Sequence[int]:
        return read_task_ids(self._files["cpu.tasks"], MAX_TASK_LIST_BYTES)

    def reset_peak(self) -> None:
        write_file(self._files["memory.peak"], 0)

    def peak_kib(self) -> int:
        return int(read_file(self._files["memory.peak"])) >> 10

    def processes(self) -> list[int]:
        return [int(pid) for pid in read_file(self._files["freezer.procs"]).split()]

    def kill(self) -> None:
        """Send the signal before thawing, so that no process runs again before it dies."""
        for pid in self.processes():
            send_signal(pid, signal.SIGKILL)
        self.thaw()

    def remove(self) -> bool:
        with contextlib.suppress(OSError):  # it may be removed already
            self._drop_cached_pages()
        removed = [remove_directory(path) for path in self._directories]
        return all(removed)

    def _drop_cached_pages(self) -> None:
        """Drop pages that would keep the kernel's part of the group after its removal.

        Many pages belong to files that later environments read too; they stay.
        """
        if int(read_file(self._files["memory.usage"])) <= _MAX_DROPPED_BYTES:
            write_file(self._files["memory.empty"], 0)
