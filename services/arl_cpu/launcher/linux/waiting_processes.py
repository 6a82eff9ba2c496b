"""Recognition of processes that wait for keys at a terminal."""

import os
import platform
import stat
from contextlib import suppress

__all__ = ["is_waiting_for_keys"]

_READ_CALLS = {"x86_64": frozenset({0}), "aarch64": frozenset({63})}.get(platform.machine(), frozenset())
"""Numbers of `read`."""
_WAIT_CALLS = {
    "x86_64": frozenset({7, 23, 232, 270, 271, 281, 441}),
    "aarch64": frozenset({22, 72, 73, 441}),
}.get(platform.machine(), frozenset())
"""Numbers of `poll`, `select`, `epoll_wait` and their variants."""
_TERMINAL_MAJORS = range(136, 144)
_OWN_TERMINAL = os.makedev(5, 0)
"""Device of `/dev/tty`."""
_STATE, _PARENT, _GROUP = 0, 1, 2
"""Indexes in the fields of proc(5) after the name."""


def is_waiting_for_keys(group: int) -> bool:
    """Return True if all processes of a group sleep, and one of them reads its terminal or waits for any file.

    Return False if that is unknown, if one has a child in another group, such as a program in a terminal of its own, or
    if one that waits for any file has a socket.
    """
    with suppress(OSError):
        members, parents = _members(group)
        if any(parent in members for pid, parent in parents.items() if pid not in members):
            return False
        waits = [_waits_for_keys(pid) for pid, state in members.items() if state != b"Z"]
        return all(state in (b"S", b"Z") for state in members.values()) and any(waits)
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


def _waits_for_keys(pid: int) -> bool:
    """Return True if the system call of the first thread reads a terminal, or waits for files without a socket."""
    with open(f"/proc/{pid}/syscall") as file:
        number, *arguments = file.read().split()
    if not number.isdigit():
        return False  # it runs
    if int(number) in _READ_CALLS:
        return _is_terminal(f"/proc/{pid}/fd/{int(arguments[0], 16)}")
    return int(number) in _WAIT_CALLS and not _has_socket(pid)


def _is_terminal(path: str) -> bool:
    found = os.stat(path)
    is_device = stat.S_ISCHR(found.st_mode)
    return is_device and (os.major(found.st_rdev) in _TERMINAL_MAJORS or found.st_rdev == _OWN_TERMINAL)


def _has_socket(pid: int) -> bool:
    directory = f"/proc/{pid}/fd"
    return any(os.readlink(f"{directory}/{name}").startswith("socket:") for name in os.listdir(directory))
