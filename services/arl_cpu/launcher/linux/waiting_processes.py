"""Recognition of processes that wait for keys at a terminal."""

import os
import platform
import stat
from contextlib import suppress
from typing import Literal

__all__ = ["is_waiting_for_keys"]

_MACHINE = platform.machine()
_READ_CALLS = {"x86_64": frozenset({0}), "aarch64": frozenset({63})}.get(_MACHINE, frozenset())
"""Numbers of `read`. On other machines no program is recognised."""
_POLL_CALLS = {
    "x86_64": frozenset({7, 23, 219, 232, 270, 271, 281, 441}),
    "aarch64": frozenset({22, 72, 73, 128, 441}),
}.get(_MACHINE, frozenset())
"""Numbers of `poll`, `select`, `epoll_wait` and their variants, and of `restart_syscall`."""
_CHILD_CALLS = {"x86_64": frozenset({61, 130, 247}), "aarch64": frozenset({95, 133, 260})}.get(_MACHINE, frozenset())
"""Numbers of `wait4`, `waitid` and `rt_sigsuspend`, in which a shell waits for the program in front."""
_WRITE_CALLS = {"x86_64": frozenset({1, 20}), "aarch64": frozenset({64, 66})}.get(_MACHINE, frozenset())
"""Numbers of `write` and `writev`, in which a program waits for the pager that reads its output."""
_TERMINAL_MAJORS = range(136, 144)
_OWN_TERMINAL = os.makedev(5, 0)
"""Device of `/dev/tty`."""
_STATE, _PARENT, _GROUP = 0, 1, 2
"""Indexes in the fields of proc(5) after the name."""


def is_waiting_for_keys(group: int) -> bool:
    """Return True if a process of the group reads its terminal or waits for any file, and all others wait for it.

    Return False if that is unknown, if a thread runs, if a process has a child in another group, such as a program in a
    terminal of its own, or if one that waits for any file has a socket.
    """
    with suppress(OSError):
        members, parents = _members(group)
        if any(parent in members for pid, parent in parents.items() if pid not in members):
            return False
        living = [pid for pid, state in members.items() if state != b"Z"]
        if not all(_all_threads_sleep(pid) for pid in living):
            return False
        waits = [_what_is_awaited(pid) for pid in living]
        return None not in waits and "keys" in waits
    return False


def _members(group: int) -> tuple[dict[int, bytes], dict[int, int]]:
    """Return the states of the processes of a group, and the parents of all processes."""
    members, parents = {}, {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
            parents[int(name)] = int(fields[_PARENT])
            if int(fields[_GROUP]) == group:
                members[int(name)] = fields[_STATE]
    return members, parents


def _all_threads_sleep(pid: int) -> bool:
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
            if file.read().rpartition(b")")[2].split()[_STATE] != b"S":
                return False
    return True


def _what_is_awaited(pid: int) -> Literal["keys", "others"] | None:
    """Return what the first thread waits for.

    `keys` is a terminal, or any file without a socket. `others` is a child, or the reader of a full pipe.
    """
    with open(f"/proc/{pid}/syscall") as file:
        call, *arguments = file.read().split()
    number = int(call) if call.isdigit() else -1
    if number in _CHILD_CALLS:
        return "others"
    if number in _WRITE_CALLS:
        return "others" if _is_pipe(f"/proc/{pid}/fd/{int(arguments[0], 16)}") else None
    if number in _READ_CALLS:
        return "keys" if _is_terminal(f"/proc/{pid}/fd/{int(arguments[0], 16)}") else None
    return "keys" if number in _POLL_CALLS and not _has_socket(pid) else None


def _is_pipe(path: str) -> bool:
    return stat.S_ISFIFO(os.stat(path).st_mode)


def _is_terminal(path: str) -> bool:
    found = os.stat(path)
    is_device = stat.S_ISCHR(found.st_mode)
    return is_device and (os.major(found.st_rdev) in _TERMINAL_MAJORS or found.st_rdev == _OWN_TERMINAL)


def _has_socket(pid: int) -> bool:
    directory = f"/proc/{pid}/fd"
    return any(os.readlink(f"{directory}/{name}").startswith("socket:") for name in os.listdir(directory))
