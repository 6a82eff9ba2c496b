"""The walls of the namespaces driver, built by bubblewrap; the agent starts anew inside them.

Never by root: bubblewrap run as uid 0 leaves /proc/sys writable. What it has no option for, a bound on the sum of
the writable places and on their inodes, is mounted before, in a user namespace around its own.
"""

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

from . import agent, mounts, namespaces, seccomp, syscalls
from .channel import Channel, as_file
from .limits import limit, yield_cores
from .mounts import WORKSPACE
from .syscalls import MS_NODEV, MS_NOSUID, MS_PRIVATE, MS_REC
from .walls import Layers, Setup

__all__ = ["BWRAP", "Bubblewrap", "problem", "serve_inside"]

BWRAP = "bwrap"
_INSIDE_ID = 1000
_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x00020000
_AGENT = "/.agent"
_START = f"import sys; sys.path.insert(0, {_AGENT!r}); from arl_cpu.launcher import bwrap; bwrap.serve_inside()"
_STAGES = ("/mnt", "/srv", "/media", "/opt", "/home", "/tmp")  # noqa: S108  # covered in a mount namespace of its own
_NOBODY = 65534
_TRY_LIMIT_S = 10


def problem() -> str | None:
    """Why bubblewrap cannot be used here, in its own words."""
    if shutil.which(BWRAP) is None:
        return f"{BWRAP} is not installed"
    other = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    command = [BWRAP, "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=_TRY_LIMIT_S, check=False, **other)  # type: ignore[call-overload]
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if tried.returncode == 0 else tried.stderr.strip() or f"{BWRAP} ended with {tried.returncode}"


class Bubblewrap(namespaces.Namespaces):
    """Outside: becomes bubblewrap. The process inside goes on with the same channel."""

    def prepare(self, base_prefix: str, layers: Layers | None) -> None:
        """Nothing: bubblewrap makes all at once, and has to be told the sizes."""

    def bind(self, setup: Setup) -> None:
        outside = setup.base_prefix if os.path.commonpath([setup.base_prefix, "/usr"]) != "/usr" else None
        shown = {"code": os.path.dirname(os.path.abspath(__file__)), **({"base": outside} if outside else {})}
        _enter_own_mounts(setup.host_id)
        stage = _stage(setup, shown)
        if setup.host_id is not None:
            os.setgroups([])
            os.setresgid(setup.host_id, setup.host_id, setup.host_id)
            os.setresuid(setup.host_id, setup.host_id, setup.host_id)
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        arguments = _arguments(setup, stage, outside)
        os.set_inheritable(agent.CHANNEL_FD, True)
        program = shutil.which(BWRAP) or BWRAP
        os.execve(program, arguments, {})  # noqa: S606


class _Inside(namespaces.Namespaces):
    def bind(self, setup: Setup) -> None:
        limit(setup, processes=setup.pids + 1)
        if not setup.has_cgroup:
            yield_cores()
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)


def serve_inside() -> NoReturn:
    """What bubblewrap executes."""
    signal.signal(signal.SIGINT, lambda _number, _frame: None)  # as in the zygote
    try:
        os.set_inheritable(agent.CHANNEL_FD, False)
        channel = Channel(socket.socket(fileno=agent.CHANNEL_FD))
        os.setsid()
        agent.serve(channel, _Inside(), Setup.of(json.loads(sys.argv[1])), agent.open_oom_score())
    finally:
        os._exit(1)


def _enter_own_mounts(host_id: int | None) -> None:
    """What is mounted from here on only this process and its children see. A user needs a user namespace for it."""
    if host_id is not None:
        syscalls.unshare(_NEW_MOUNTS)
    else:
        uid, gid = os.geteuid(), os.getegid()
        syscalls.unshare(_NEW_USER | _NEW_MOUNTS)
        maps = {"setgroups": "deny", "uid_map": f"{_INSIDE_ID} {uid} 1", "gid_map": f"{_INSIDE_ID} {gid} 1"}
        for name, text in maps.items():
            Path(f"/proc/self/{name}").write_text(text)
    syscalls.mount("none", "/", None, MS_REC | MS_PRIVATE)


def _stage(setup: Setup, shown: dict[str, str]) -> str:
    """Where bubblewrap finds what it shall bind, also what its uid could not reach by its path."""
    files = {name: os.open(path, os.O_PATH | os.O_CLOEXEC) for name, path in shown.items()}
    stage = next(path for path in _STAGES if os.path.isdir(path))
    syscalls.mount("tmpfs", stage, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,nr_inodes=64,mode=0755")
    for name, file in files.items():
        os.mkdir(f"{stage}/{name}")
        syscalls.bind(file, f"{stage}/{name}")
    os.mkdir(f"{stage}/area")
    options = mounts.area_options(disk_mib=setup.disk_mib, memory_mib=setup.memory_mib)
    syscalls.mount("tmpfs", f"{stage}/area", "tmpfs", MS_NOSUID | MS_NODEV, options)
    for name in mounts.WRITABLE:
        place = f"{stage}/area/{name}"
        os.mkdir(place)
        os.chmod(place, 0o755 if name == "workspace" else 0o1777)
        if setup.host_id is not None:
            os.chown(place, setup.host_id, setup.host_id)
    return stage


def _arguments(setup: Setup, stage: str, outside: str | None) -> list[str]:
    inside_id = str(_INSIDE_ID)
    filter_file = as_file(seccomp.program(has_cgroup=setup.has_cgroup))
    os.set_inheritable(filter_file, True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return [
        *(BWRAP, "--unshare-all", "--unshare-user", "--die-with-parent", "--as-pid-1", "--clearenv"),
        *("--uid", inside_id, "--gid", inside_id, "--hostname", "sandbox", "--setenv", "LANG", "C.UTF-8"),
        *(each for name in mounts.SYSTEM for each in _shown(f"/{name}")),
        *(each for name in mounts.ETC for each in _shown(f"/etc/{name}")),
        *(each for path, text in mounts.WRITTEN.items() for each in _written(f"/{path}", text)),
        *(("--ro-bind", f"{stage}/base", outside) if outside else ()),
        *("--ro-bind", f"{stage}/code", f"{_AGENT}/arl_cpu/launcher"),
        *("--dir", "/dev"),
        *(each for name in mounts.DEVICES for each in ("--dev-bind", f"/dev/{name}", f"/dev/{name}")),
        *(each for name, link in mounts.DEV_LINKS.items() for each in ("--symlink", link, f"/dev/{name}")),
        *("--proc", "/proc"),
        *(each for name in mounts.MASKED_FILES for each in _masked(f"/proc/{name}")),
        *(each for name, place in mounts.WRITABLE.items() for each in ("--bind", f"{stage}/area/{name}", place)),
        *("--remount-ro", "/", "--chdir", WORKSPACE, "--seccomp", str(filter_file)),
        *("--", f"{setup.base_prefix}/bin/{version}", "-I", "-c", _START, json.dumps(asdict(setup))),
    ]


def _shown(path: str) -> tuple[str, ...]:
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            return ("--symlink", os.readlink(path), path)
    except OSError:
        return ()  # hosts differ; what is missing outside is missing inside
    return ("--ro-bind", path, path) if os.access(path, os.R_OK) else ()


def _written(path: str, text: str) -> tuple[str, ...]:
    file = as_file(text.encode())
    os.set_inheritable(file, True)
    return ("--perms", "0644", "--file", str(file), path)


def _masked(path: str) -> tuple[str, ...]:
    return ("--dev-bind", "/dev/null", path) if os.path.exists(path) else ()
