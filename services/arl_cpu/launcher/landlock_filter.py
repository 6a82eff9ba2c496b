"""What seccomp adds where no namespace helps: no sockets, no shared kernel objects, no way to hit the agent."""

import errno
from functools import cache

from . import seccomp
from .seccomp import ARGUMENTS, IOCTL, SOCKETPAIR, if_argument_is, unless_argument_is
from .syscalls import AARCH64, MACHINE

__all__ = ["around_action", "around_environment"]

_REFUSED = 0x00050000 | errno.EPERM
_SOCK_TYPE = (1, 5)
"""SOCK_STREAM, SOCK_SEQPACKET: connected for good. A datagram socket of a pair could be turned to another address."""
_SOCK_FLAGS = (0, 0o4000, 0o2000000, 0o2004000)
_SET_OWNER, _FIOSETOWN, _SIOCSPGRP = (8, 10, 15), 0x8901, 0x8902
"""fcntl F_SETOWN, F_SETSIG, F_SETOWN_EX: the kernel would send a signal on a file's behalf."""
_ANY_PROCESS = 0xFFFFFFFF

Numbers = tuple[int | None, int | None]
_DENIED: dict[str, Numbers] = {
    "accept": (43, 202),
    "accept4": (288, 242),
    "bind": (49, 200),
    "connect": (42, 203),
    "inotify_add_watch": (254, 27),  # would tell the names of files that cannot be listed
    "listen": (50, 201),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "semget": (64, 190),
    "shmget": (29, 194),
    "socket": (41, 198),
}
_METADATA: dict[str, Numbers] = {
    "chmod": (90, None),
    "chown": (92, None),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fchownat": (260, 54),
    "file_setattr": (469, 469),
    "futimesat": (261, None),
    "lchown": (94, None),
    "lremovexattr": (198, 15),
    "lsetxattr": (189, 6),
    "removexattr": (197, 14),
    "removexattrat": (466, 466),
    "setxattr": (188, 5),
    "setxattrat": (463, 463),
    "utime": (132, None),
    "utimes": (235, None),
}
"""Landlock does not look at these, and the files around belong to the same user. On opened files they work."""
_UTIMENSAT: Numbers = (280, 88)
_FCNTL: Numbers = (72, 25)
_AT_FIRST: dict[str, Numbers] = {
    "pidfd_open": (434, 434),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "tgkill": (234, 131),
    "tkill": (200, 130),
}
"""Calls that send a signal to their first argument, or open it."""
_KILL: Numbers = (62, 129)


@cache
def around_environment(*, has_cgroup: bool, owns_files: bool, machine: str = MACHINE) -> bytes:
    """For the agent and all below it. `owns_files`: the uid is one that has files on this host."""
    denied = {**_DENIED, **(_METADATA if owns_files else {})}
    rules = [seccomp.refuse(number, _REFUSED) for number in _numbers(denied, machine)]
    if owns_files and (number := _on(_UTIMENSAT, machine)) is not None:
        # With no path it is about an opened file. A pointer has two halves.
        low, high = ARGUMENTS[1], ARGUMENTS[1] + 4
        rules.append(seccomp.unless_both_zero(number, low, high, _REFUSED))
    if owns_files:
        rules.append(seccomp.sparing_all_others(machine, _REFUSED))
    types = tuple(kind | flags for kind in _SOCK_TYPE for flags in _SOCK_FLAGS)
    rules.append(unless_argument_is(SOCKETPAIR[machine], ARGUMENTS[1], types, _REFUSED))
    if (number := _on(_FCNTL, machine)) is not None:
        rules.append(if_argument_is(number, ARGUMENTS[1], _SET_OWNER, _REFUSED))
    requests = (*seccomp.INJECTIONS, _FIOSETOWN, _SIOCSPGRP)
    rules.append(if_argument_is(IOCTL[machine], ARGUMENTS[1], requests, _REFUSED))
    return seccomp.program(has_cgroup=has_cgroup, machine=machine, first=b"".join(rules))


def around_action(agent: int, machine: str = MACHINE) -> bytes:
    """For what an action runs: the agent, a process of the same uid, is out of its reach."""
    rules = [if_argument_is(number, ARGUMENTS[0], (agent,), _REFUSED) for number in _numbers(_AT_FIRST, machine)]
    rules.append(seccomp.sparing(agent, machine, _REFUSED))
    if (number := _on(_KILL, machine)) is not None:
        its_group = _ANY_PROCESS + 1 - agent
        rules.append(if_argument_is(number, ARGUMENTS[0], (agent, its_group, _ANY_PROCESS), _REFUSED))
    return seccomp.only(b"".join(rules), machine)


def _numbers(calls: dict[str, Numbers], machine: str) -> list[int]:
    return [number for each in calls.values() if (number := _on(each, machine)) is not None]


def _on(numbers: Numbers, machine: str) -> int | None:
    return numbers[machine == AARCH64]
