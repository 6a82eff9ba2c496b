"""The process of one operation on the files of a living environment, between its actions.

It runs in the environment's mount namespace as one of its users and behind the actions' filter. A hostile file can make
it do only what that user may do anyway. It is not in the environment's pid namespace, so processes there cannot see,
signal or trace it. It must run while the environment is frozen. All workers of a node share the CPU limit of one group
with the lowest weight, because nobody granted them cores. Under cgroup v1 their memory counts as the environment's.
Under cgroup v2, which has one directory for all controllers, the size of the write area limits their writes.
"""

import fcntl
import os
import resource
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any, NoReturn

from arl_cpu.launcher.files import worker_stream
from arl_cpu.launcher.files.archives import DISK_FULL, measure, pack, unpack
from arl_cpu.launcher.files.file_tree import FileAccessError, FileTree, list_entries
from arl_cpu.launcher.isolation import seccomp, users
from arl_cpu.launcher.isolation.overlay import expose_upper_directory
from arl_cpu.launcher.linux import syscalls

__all__ = ["run_worker"]

INSIDE_ID = 1000
_STREAM_FD, _MOUNTS_FD = 3, 4
_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x00020000
_MAX_MEMORY_BYTES = 192 << 20
"""Memory limit of the worker. The headers of an archive are read into memory at any length they claim."""
_MIB = 1 << 20
_NICE = 19
_TIMEOUT_MESSAGE = "the file operation exceeded its time limit"


def run_worker(stream: int, mounts: int | None, request: Mapping[str, Any]) -> NoReturn:
    """Execute the request and report on the stream. Never returns to the caller."""
    try:
        _close_other_files(stream, mounts)
        _lower_priority()
        peer = worker_stream.WorkerStream(socket.socket(fileno=_STREAM_FD))
        signal.signal(signal.SIGALRM, lambda _number, _frame: peer.interrupt(FileAccessError("time", _TIMEOUT_MESSAGE)))
        signal.alarm(request["limit_s"])
        try:
            root = _enter_sandbox(_MOUNTS_FD if mounts is not None else None, request)
            peer.send_response(_execute(peer, root, request))
        except FileAccessError as refused:
            peer.send_error(refused.code, str(refused))
        except MemoryError:
            peer.send_error("memory", "the archive needs more memory than the file operation may use")
        except OSError as error:
            full = error.errno in DISK_FULL
            peer.send_error(
                "disk" if full else "conflict", f"{error.strerror or error}: {error.filename or request['op']}"
            )
    finally:
        os._exit(0)


def _lower_priority() -> None:
    """Use CPU time that no other process needs, also where no cgroup limits the worker."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _execute(stream: worker_stream.WorkerStream, root: int, request: Mapping[str, Any]) -> dict[str, Any]:
    match request["op"]:
        case "list":
            tree = FileTree(root, request["path"])
            return list_entries(tree, recursive=request["recursive"], limit=request["limit"], after=request["after"])
        case "pack":
            tree = FileTree(root, request["path"], only=request["only"])
            # A larger archive could not be restored to an environment of this size.
            most = min(request["max_bytes"], request["disk_mib"] * _MIB) if request["whole"] else request["max_bytes"]
            stream.send_response(asdict(measure(tree, max_bytes=most)))
            with stream.output_stream() as target:
                pack(tree, target, template=request["digest"], has_owners=request["whole"] and _has_users(request))
            return {}
        case "unpack":
            stream.send_response({})
            how = {"max_bytes": request["disk_mib"] * _MIB, "restores": request["whole"], "template": request["digest"]}
            if request["whole"] and _has_users(request):
                default = _find_user(request)
                how["owner"] = default.uid, default.gid
            size = unpack(stream.input_stream(), root, request["path"], **how)
            return {"members": size.members, "bytes": size.bytes}
    raise FileAccessError("unsupported", f"the file operation {request['op']!r} does not exist")


def _close_other_files(stream: int, mounts: int | None) -> None:
    """Close all other files that the fork inherited."""
    null = os.open("/dev/null", os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    # Duplicate to free numbers first: one may have the number that another will get.
    kept = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _MOUNTS_FD + 1) for file in (stream, mounts) if file is not None]
    for number, file in zip((_STREAM_FD, _MOUNTS_FD), kept, strict=False):
        os.dup2(file, number, inheritable=False)
    os.closerange(_STREAM_FD + len(kept), os.sysconf("SC_OPEN_MAX"))


def _enter_sandbox(mounts: int | None, request: Mapping[str, Any]) -> int:
    """Become a user of the environment in its mount namespace. Return the opened working directory."""
    for path in request["join"]:
        _write(path, "0")
    with suppress(PermissionError):  # a host may have set a higher minimum
        _write("/proc/self/oom_score_adj", "1000")
    if os.geteuid() == 0 and (mounts is not None or request["host_id"] is not None):
        os.setgroups([])
    if mounts is not None:
        user = syscalls.owner_of_namespace(mounts)
        syscalls.enter_namespace(user, _NEW_USER)
        kept = users.KEPT_CAPABILITIES if _has_users(request) else ()
        syscalls.empty_bounding_set(kept=kept)
        syscalls.enter_namespace(mounts, _NEW_MOUNTS)
        if request["op"] == "pack" and request["digest"] is not None:
            request = {**request, "workspace": expose_upper_directory()}
        os.close(user)
        os.close(mounts)
        _switch_inside(request)
    elif request["host_id"] is not None:
        syscalls.empty_bounding_set()
        _switch_uid(request["host_id"])
    _set_limits(request["disk_mib"])
    syscalls.set_capabilities(users.KEPT_CAPABILITIES if _has_users(request) and os.geteuid() == 0 else ())
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    seccomp.install_default_filter(has_cgroup=request["has_cgroup"])
    return _open_root(request["workspace"], is_own_tree=mounts is not None)


def _has_users(request: Mapping[str, Any]) -> bool:
    return request["user"] is not None


def _find_user(request: Mapping[str, Any]) -> users.SandboxUser:
    try:
        return users.find_user(request["user"])
    except ValueError as unknown:
        raise FileAccessError("invalid", str(unknown)) from None


def _switch_inside(request: Mapping[str, Any]) -> None:
    """Become the user of the operation. Snapshots have the files of all users, so root handles them."""
    if not _has_users(request):
        _switch_uid(INSIDE_ID)
        return
    users.become(users.SandboxUser(0, 0))
    if not request["whole"]:
        users.become(_find_user(request))


def _open_root(workspace: str, *, is_own_tree: bool) -> int:
    """Open the working directory.

    In the host's tree only the last name could be a link by an action; do not follow it.
    """
    if is_own_tree:
        return os.open(workspace, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    parent, name = os.path.split(workspace)
    area = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    return os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=area)


def _switch_uid(uid: int) -> None:
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _set_limits(disk_mib: int) -> None:
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_DATA, _MAX_MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, disk_mib * _MIB),
    ):
        resource.setrlimit(kind, (most, most))


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
