"""Recognition of processes that wait for keys at a terminal."""

import os
from contextlib import suppress

__all__ = ["is_waiting_for_keys"]

_READS_TERMINAL = b"n_tty_read"
_WAITS_FOR_FILES = (b"do_select", b"do_poll", b"do_sys_poll", b"ep_poll", b"do_epoll_wait")
_STATE, _PARENT, _GROUP = 0, 1, 2
"""Indexes in the fields of proc(5) after the name."""


def is_waiting_for_keys(group: int) -> bool:
    """Return True if all processes of a group sleep, and one of them reads its terminal or waits for any file.

    Return False if that is unknown, if one has a child in another group, such as a program in a terminal of its own, or
    if one that waits for any file has a socket. Kernel stacks are readable by root only.
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
    with open(f"/proc/{pid}/stack", "rb") as file:
        stack = file.read()
    if _READS_TERMINAL in stack:
        return True
    return any(name in stack for name in _WAITS_FOR_FILES) and not _has_socket(pid)


def _has_socket(pid: int) -> bool:
    directory = f"/proc/{pid}/fd"
    return any(os.readlink(f"{directory}/{name}").startswith("socket:") for name in os.listdir(directory))
