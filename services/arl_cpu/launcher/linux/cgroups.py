"""Kernel accounting and limits for each environment: cgroup v1, v2 or none behind one interface."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from arl_cpu.launcher.linux.cgroup_files import (
    read_counter,
    read_file,
    remove_directory,
    send_signal,
    write_file,
    write_if_exists,
)

__all__ = ["Cgroup", "CgroupTree", "CgroupUsage", "NoCgroup", "find_cgroup_tree", "wait_until"]

_PERIOD_US = 100_000
_MIN_QUOTA_US = 1_000
_SHARES, _WEIGHT = 102, 10
"""A tenth of the default, so that sandboxes cannot starve the services next to them."""
_WORKERS = "file-workers"
"""Name of the group in which all file operations of the node share one core. Other groups have priority."""
_WORKERS_CPU_MILLI, _WORKERS_SHARES, _WORKERS_WEIGHT = 1000, 2, 1
_V1_CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "pids", "freezer")
_V1_FILES = {
    "cpu.quota": "cpu.cfs_quota_us",
    "cpuacct.usage": "cpuacct.usage",
    "cpuset.cpus": "cpuset.cpus",
    "cpuset.mems": "cpuset.mems",
    "freezer.procs": "cgroup.procs",
    "freezer.state": "freezer.state",
    "memory.limit": "memory.limit_in_bytes",
    "memory.memsw": "memory.memsw.limit_in_bytes",
    "memory.oom": "memory.oom_control",
    "memory.peak": "memory.max_usage_in_bytes",
    "pids.events": "pids.events",
    "pids.max": "pids.max",
}
"""File names by controller and purpose."""
_V2_CONTROLLERS = ("cpu", "cpuset", "memory", "pids")


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
    def set_cpu(self, *, cpu_milli: int, cores: Sequence[int]) -> None: ...
    def freeze(self) -> bool:
        """Freeze the group. Return True once no process of it runs; the caller repeats until then."""
        ...

    def thaw(self) -> None: ...
    def usage(self) -> CgroupUsage: ...
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

    def make(self, name: str) -> Cgroup: ...
    def sweep(self) -> None:
        """Kill and remove every group below, including those of earlier launchers."""
        ...

    def remove(self) -> None: ...


class NoCgroup:
    """An environment without cgroups: nothing is limited or counted."""

    worker_join_files: Sequence[str] = ()

    @property
    def join_files(self) -> Sequence[str]:
        return ()

    def set_limits(self, *, memory_mib: int, pids: int) -> None:
        del memory_mib, pids

    def set_cpu(self, *, cpu_milli: int, cores: Sequence[int]) -> None:
        del cpu_milli, cores

    def freeze(self) -> bool:
        return True

    def thaw(self) -> None: ...
    def usage(self) -> CgroupUsage:
        return CgroupUsage()

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
        if all(name in mounts for name in _V1_CONTROLLERS):
            return CgroupV1Tree({name: Path(mounts[name]) for name in _V1_CONTROLLERS}, prefix)
        if "v2" in mounts:
            return CgroupV2Tree(Path(mounts["v2"]), prefix)
    except OSError:
        return None
    return None


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
        write_file(self._roots["cpu"] / "cpu.shares", _SHARES)
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
        if not (self._roots["cpu"] / _WORKERS).exists():
            workers = self._make(_WORKERS)
            workers.set_cpu(cpu_milli=_WORKERS_CPU_MILLI, cores=())
            write_file(self._roots["cpu"] / _WORKERS / "cpu.shares", _WORKERS_SHARES)
        freezer = os.path.realpath(self._roots["freezer"])
        shared = {os.path.realpath(self._roots[controller]) for controller in ("cpu", "cpuacct", "cpuset")}
        directories = [self._roots[controller] for controller in self._hierarchies]
        return [
            f"{path / (_WORKERS if os.path.realpath(path) in shared else name)}/cgroup.procs"
            for path in directories
            if os.path.realpath(path) != freezer
        ]

    def sweep(self) -> None:
        names = {path.name for root in self._roots.values() for path in root.glob("*/")}
        for name in sorted(names):
            _kill_and_remove(self.make(name))

    def remove(self) -> None:
        for root in self._roots.values():
            remove_directory(root / _WORKERS)
            remove_directory(root)
            remove_directory(root.parent)


class CgroupV1:
    def __init__(self, paths: dict[str, Path], directories: Sequence[Path], cpus: str, mems: str) -> None:
        self._directories, self._all_cores = directories, cpus
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
        write_file(self._files["pids.max"], pids)

    def set_cpu(self, *, cpu_milli: int, cores: Sequence[int]) -> None:
        # Writing the same value starts a new period, so that earlier usage does not count.
        write_file(self._files["cpu.quota"], _quota_us(cpu_milli))
        write_file(self._files["cpuset.cpus"], ",".join(map(str, cores)) or self._all_cores)

    def freeze(self) -> bool:
        state = self._files["freezer.state"]
        write_file(state, "FROZEN")
        return read_file(state) == "FROZEN\n"

    def thaw(self) -> None:
        write_file(self._files["freezer.state"], "THAWED")

    def usage(self) -> CgroupUsage:
        return CgroupUsage(
            cpu_us=int(read_file(self._files["cpuacct.usage"])) // 1000,
            oom_kills=read_counter(self._files["memory.oom"], "oom_kill"),
            pids_refused=read_counter(self._files["pids.events"], "max"),
        )

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
        removed = [remove_directory(path) for path in self._directories]
        return all(removed)


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
        for directory in (base, self._root.parent, self._root):
            write_file(directory / "cgroup.subtree_control", " ".join(f"+{name}" for name in _V2_CONTROLLERS))
        write_file(self._root / "cpu.weight", _WEIGHT)

    def make(self, name: str) -> "CgroupV2":
        group = CgroupV2(self._root / name)
        group.worker_join_files = self._worker_join_files()
        return group

    def _worker_join_files(self) -> list[str]:
        """Return the file of the shared group. The memory of an operation is not limited by the environment's group."""
        path = self._root / _WORKERS
        if not path.exists():
            CgroupV2(path).set_cpu(cpu_milli=_WORKERS_CPU_MILLI, cores=())
            write_file(path / "cpu.weight", _WORKERS_WEIGHT)
        return [f"{path}/cgroup.procs"]

    def sweep(self) -> None:
        for path in self._root.glob("*/"):
            _kill_and_remove(self.make(path.name))

    def remove(self) -> None:
        remove_directory(self._root / _WORKERS)
        remove_directory(self._root)
        remove_directory(self._root.parent)


class CgroupV2:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.worker_join_files: Sequence[str] = ()
        path.mkdir(exist_ok=True)

    @property
    def join_files(self) -> Sequence[str]:
        return (f"{self._path}/cgroup.procs",)

    def set_limits(self, *, memory_mib: int, pids: int) -> None:
        write_file(self._path / "memory.max", memory_mib << 20)
        write_if_exists(self._path / "memory.swap.max", 0)
        write_file(self._path / "pids.max", pids)

    def set_cpu(self, *, cpu_milli: int, cores: Sequence[int]) -> None:
        write_file(self._path / "cpu.max", f"{_quota_us(cpu_milli)} {_PERIOD_US}")
        write_file(self._path / "cpuset.cpus", ",".join(map(str, cores)) or "\n")

    def freeze(self) -> bool:
        write_file(self._path / "cgroup.freeze", 1)
        return read_counter(self._path / "cgroup.events", "frozen") == 1

    def thaw(self) -> None:
        write_file(self._path / "cgroup.freeze", 0)

    def usage(self) -> CgroupUsage:
        return CgroupUsage(
            cpu_us=read_counter(self._path / "cpu.stat", "usage_usec"),
            oom_kills=read_counter(self._path / "memory.events", "oom_kill"),
            pids_refused=read_counter(self._path / "pids.events", "max"),
        )

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
            found.update({name: where for name in options.split(",") if name in _V1_CONTROLLERS})
    return found


def _own_v2_path() -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            return line[3:]
    raise OSError("this process is in no cgroup of version 2")


def _quota_us(cpu_milli: int) -> int:
    return max(_MIN_QUOTA_US, cpu_milli * _PERIOD_US // 1000)


def _kill_and_remove(group: Cgroup) -> None:
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
