"""A plain process with the limits of an action, as the reference of comparisons."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arl_bench.harness.process_usage import descendants

__all__ = ["PlainCgroup", "plain_cgroup"]

PERIOD_US = 100_000
JOIN_SCRIPT = 'for group in $GROUPS_TO_JOIN; do echo $$ > "$group/cgroup.procs"; done; exec "$@"'
PIN_PROGRAM = "import os\nos.sched_setaffinity(0, {cores})\n"


@dataclass(frozen=True, slots=True)
class PlainCgroup:
    """Cgroups of version 1 or 2 next to those of a system's environments; none if the system has none."""

    directories: tuple[Path, ...]

    @property
    def limits(self) -> str:
        """Return the limits that a plain process shares with an action."""
        if self.directories:
            return "quota and cores, by a cgroup beside those of the environments"
        return "cores, by affinity; actions have no quota on this machine either"

    def run(self, program: str, *, cpu: float, cores: Sequence[int]) -> dict[str, Any]:
        """Run a Python program and return the JSON document that it prints."""
        if self.directories:
            self._set_limits(cpu, cores)
        else:
            program = PIN_PROGRAM.format(cores=list(cores)) + program
        done = subprocess.run(
            ["/bin/sh", "-c", JOIN_SCRIPT, "sh", sys.executable, "-c", program],
            env={"PATH": os.defpath, "GROUPS_TO_JOIN": " ".join(map(str, self.directories))},
            capture_output=True,
            check=True,
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def _set_limits(self, cpu: float, cores: Sequence[int]) -> None:
        quota_us = int(cpu * PERIOD_US)
        for directory in self.directories:
            _write_if_exists(directory / "cpuset.cpus", ",".join(map(str, cores)))
            _write_if_exists(directory / "cpu.cfs_quota_us", str(quota_us))
            _write_if_exists(directory / "cpu.max", f"{quota_us} {PERIOD_US}")


@contextmanager
def plain_cgroup(launcher: int) -> Iterator[PlainCgroup]:
    """Create the cgroups for the system of this launcher and remove them at the end."""
    directories = tuple(parent / "plain" for parent in _parent_cgroups(launcher))
    try:
        for directory in directories:
            directory.mkdir()
            if (mems := directory.parent / "cpuset.mems").exists():
                (directory / "cpuset.mems").write_text(mems.read_text())
        yield PlainCgroup(directories)
    finally:
        for directory in directories:
            with suppress(OSError):  # the launcher removes leftovers with its own
                directory.rmdir()


def _parent_cgroups(launcher: int) -> list[Path]:
    """Return the parent cgroups of the launcher's environments. They contain its descendants but not itself."""
    found: dict[Path, None] = {}
    mounts = _cgroup_mounts()
    for pid in descendants(launcher):
        try:
            lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            _, controllers, path = line.split(":", 2)
            for controller in {"cpu", "cpuset"}.intersection(controllers.split(",")) or {controllers}:
                if controller in mounts and path.startswith("/tangram/"):
                    found[(mounts[controller] / path.lstrip("/")).parent] = None
    return list(found)


def _cgroup_mounts() -> dict[str, Path]:
    """Return mounts by controller. Version 2 has the empty name, as in /proc/PID/cgroup."""
    found: dict[str, Path] = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup":
            found |= {name: Path(where) for name in {"cpu", "cpuset"}.intersection(options.split(","))}
        elif kind == "cgroup2":
            found[""] = Path(where)
    return found


def _write_if_exists(path: Path, value: str) -> None:
    if path.exists():
        path.write_text(value)
