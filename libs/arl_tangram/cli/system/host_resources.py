"""Resources of one system on this machine outside its rows: cgroups, processes, mounts, files."""

import fcntl
import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

from arl_wire.admin.consistency import ConsistencyFinding

__all__ = ["HostResourceScanner", "is_process_alive"]

# The launcher uses the same scheme: each directory has its own name and id range.
_FIRST_ID, _IDS_PER_LAUNCHER, _LAUNCHERS = 0x70000000, 0x10000, 0x1000
_STALE_CHECK_S = 600.0

SHARED_GROUPS = frozenset({"file-workers"})
"""Cgroups of a launcher that belong to no environment."""


class HostResourceScanner:
    """A scanner for the system in `directory` only. Nothing is cached: each call scans again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory.absolute()
        self._launcher = self._directory / "launcher"
        self._suffix = zlib.crc32(os.fsencode(self._launcher))

    def findings(self) -> Iterator[ConsistencyFinding]:
        """Yield resources that must not exist, independently of the rows."""
        if not self._is_launcher_alive():
            for path in self.cgroup_trees():
                yield _make_finding("orphan_cgroup", path, "its launcher is dead")
            for pid in self._sandbox_processes():
                yield _make_finding("orphan_process", pid, "it has a sandbox's uid, and the launcher is dead")
            for path in _list_entries(self._launcher / "work"):
                yield _make_finding("stray_directory", path, "its launcher is dead")
        for mount in self._mounts():
            yield _make_finding("mount", mount, "mounted below the state directory")
        for path in self._directory.glob("*.unfinished"):
            yield _make_finding("stray_file", path, "a write that did not end")
        for path in _stale_check_directories():
            yield _make_finding("stray_directory", path, "of a `doctor` that did not end")

    def environments(self) -> tuple[set[str], bool]:
        """Return the names of environments with a cgroup or files here, and True if the list is complete.

        Prepared environments that no trajectory uses yet are excluded.
        """
        trees = self.cgroup_trees()
        groups = {path.name for tree in trees for path in _list_entries(tree) if path.is_dir()}
        ready = set(_read(str(self._launcher / "ready")).split())
        return (groups | {path.name for path in _list_entries(self._launcher / "work")}) - ready - SHARED_GROUPS, bool(
            trees
        )

    def _is_launcher_alive(self) -> bool:
        """Return True if the launcher's lock is taken. A pid may be stale."""
        try:
            file = (self._launcher / "lock").open()
        except OSError:
            return False
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def cgroup_trees(self) -> list[Path]:
        """Find one directory per hierarchy, below a mount or, for an ordinary user, below a delegated cgroup."""
        pattern = f"tangram/*.{self._suffix:08x}"
        places = set(_cgroup_mounts())
        own = [line[3:] for line in _read("/proc/self/cgroup").splitlines() if line.startswith("0::")]
        below = [(mount / part.lstrip("/")) for mount in places for part in own]
        places |= {place for path in below for place in (path, path.parent)}
        return sorted({path for place in places for path in place.glob(pattern)})

    def _sandbox_processes(self) -> list[int]:
        """Find processes by their uid, which belongs to this launcher alone. An ordinary user has no such uids."""
        first = _FIRST_ID + self._suffix % _LAUNCHERS * _IDS_PER_LAUNCHER
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                uid = path.stat().st_uid
            except OSError:
                continue
            if first <= uid < first + _IDS_PER_LAUNCHER:
                found.append(int(path.name))
        return sorted(found)

    def _mounts(self) -> list[str]:
        below = self._directory.resolve()
        mounts = (line.split()[4] for line in _read("/proc/self/mountinfo").splitlines())
        return sorted(mount for mount in mounts if Path(mount) != below and Path(mount).is_relative_to(below))


def is_process_alive(pid: int) -> bool:
    """Return True if the process runs. A zombie does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def _make_finding(check: str, subject: Path | int | str, detail: str) -> ConsistencyFinding:
    return ConsistencyFinding(check=check, subject=str(subject), detail=detail)


def _cgroup_mounts() -> list[Path]:
    fields = (line.split() for line in _read("/proc/self/mounts").splitlines())
    return [Path(where) for _, where, kind, *_ in fields if kind in ("cgroup", "cgroup2")]


def _stale_check_directories() -> list[Path]:
    found = []
    for path in Path(os.environ.get("TMPDIR", "/tmp")).glob("tangram-check-*"):  # noqa: S108 - only looked at
        try:
            status = path.stat()
        except OSError:
            continue
        if status.st_uid == os.geteuid() and time.time() - status.st_mtime > _STALE_CHECK_S:
            found.append(path)
    return sorted(found)


def _list_entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
