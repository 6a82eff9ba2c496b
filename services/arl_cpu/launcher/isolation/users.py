"""The users of an environment whose user namespace has a range of ids.

The agent and the file workers are root of that namespace. They act as the user of a request while they touch its files
or start its program.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from arl_cpu.launcher.linux import syscalls

__all__ = [
    "HOST_USER",
    "KEPT_CAPABILITIES",
    "MAX_ID",
    "ROOT",
    "SandboxUser",
    "acting_as",
    "become",
    "find_user",
    "has_id_range",
]

ROOT = "0"
HOST_USER = "1000:1000"
"""Default user of the template `host`."""
MAX_ID = 65_534
KEPT_CAPABILITIES = (0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 29)
"""CAP_CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, SETPCAP, NET_BIND_SERVICE, SYS_CHROOT, AUDIT_WRITE.

Root inside needs them for `chown`, `su`, `sudo`, `useradd` and services that drop privileges. Container engines also
grant MKNOD, NET_RAW and SETFCAP, which no such program needs.
"""
_MAX_BYTES = 1 << 20
"""Part of a file of accounts that is read. An action may have written the file."""
_MAX_GROUPS = 64


@dataclass(frozen=True, slots=True)
class SandboxUser:
    """A user with the ids inside."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    home: str | None = None
    """Home directory of `/etc/passwd`."""


def has_id_range() -> bool:
    """Return True if the user namespace of this process has root and other users."""
    with open("/proc/self/uid_map") as file:
        return any(line.split()[0] == "0" and int(line.split()[2]) > 1 for line in file)


def find_user(text: str) -> SandboxUser:
    """Find `USER` or `USER:GROUP`, each a name or a number, in the files of the current root directory.

    Raises ValueError if a name does not exist there or a number is too large.
    """
    name, _, group = text.partition(":")
    if name.isdecimal() and group.isdecimal():
        return SandboxUser(_checked_id(name, text), _checked_id(group, text))
    entry = next((row for row in _rows("/etc/passwd", 7) if name in (row[0], row[2])), None)
    if entry is not None:
        uid, gid, home = _checked_id(entry[2], text), _checked_id(entry[3], text), entry[5] or None
    elif name.isdecimal():
        uid, gid, home = _checked_id(name, text), 0, None
    else:
        raise ValueError(
            f"user {text!r} does not exist in the environment; use a name of its /etc/passwd or a uid up to {MAX_ID}"
        )
    if group:
        return SandboxUser(uid, _find_group(group, text), (), home)
    login = entry[0] if entry is not None else None
    groups = [row for row in _rows("/etc/group", 4) if login is not None and login in row[3].split(",")]
    return SandboxUser(uid, gid, tuple(int(row[2]) for row in groups)[:_MAX_GROUPS], home)


@contextmanager
def acting_as(user: SandboxUser | None) -> Iterator[None]:
    """Let this process, root of its namespace, act as the user. A program that it starts meanwhile has only its ids.

    The saved uid stays root's. An executed program loses it, and its capabilities with it.
    """
    if user is None or user.uid == 0 == user.gid:
        yield
        return
    os.setgroups(user.groups)
    os.setresgid(user.gid, user.gid, 0)
    os.setresuid(user.uid, user.uid, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)
        os.setgroups([])
        syscalls.protect_agent()


def become(user: SandboxUser) -> None:
    """Make this process, root of its namespace, the user permanently. Root keeps its capabilities."""
    os.setgroups(user.groups)
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)


def _find_group(group: str, text: str) -> int:
    if group.isdecimal():
        return _checked_id(group, text)
    found = next((row[2] for row in _rows("/etc/group", 4) if row[0] == group), None)
    if found is None:
        raise ValueError(f"the group of user {text!r} does not exist in the environment; use a name of its /etc/group")
    return _checked_id(found, text)


def _checked_id(number: str, text: str) -> int:
    if not number.isdecimal() or len(number) > 5 or int(number) > MAX_ID:
        raise ValueError(f"user {text!r} has an id above {MAX_ID}, the largest one of an environment")
    return int(number)


def _rows(path: str, fields: int) -> Iterator[list[str]]:
    """Yield the complete rows of a file of accounts. A missing or unusual file has none."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        content = os.read(file, _MAX_BYTES) if stat.S_ISREG(os.fstat(file).st_mode) else b""
    except OSError:
        content = b""
    finally:
        os.close(file)
    for line in os.fsdecode(content).splitlines():
        row = line.split(":")
        if len(row) >= fields and row[2].isdecimal() and len(row[2]) <= 5 and int(row[2]) <= MAX_ID:
            yield row
