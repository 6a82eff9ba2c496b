"""Seccomp rules that replace namespaces: no sockets, no shared kernel objects, no signals to the agent."""

import errno
from functools import cache

from arl_cpu.launcher.isolation import seccomp
from arl_cpu.launcher.isolation.seccomp import ARGUMENT_OFFSETS, IOCTL, SOCKETPAIR, if_argument_is, unless_argument_is
from arl_cpu.launcher.linux.syscalls import AARCH64, MACHINE

__all__ = ["action_filter", "environment_filter"]

_DENY = 0x00050000 | errno.EPERM
_SOCK_TYPE = (1, 5)
"""SOCK_STREAM and SOCK_SEQPACKET are connected permanently. A datagram socket of a pair could change its address."""
_SOCK_FLAGS = (0, 0o4000, 0o2000000, 0o2004000)
_SET_OWNER, _FIOSETOWN, _SIOCSPGRP = (8, 10, 15), 0x8901, 0x8902
"""fcntl F_SETOWN, F_SETSIG and F_SETOWN_EX would let the kernel send signals on behalf of a file."""
_ALL_PROCESSES = 0xFFFFFFFF

SyscallNumbers = tuple[int | None, int | None]
_DENIED: dict[str, SyscallNumbers] = {
    "accept": (43, 202),
    "accept4": (288, 242),
    "bind": (49, 200),
    "connect": (42, 203),
    "inotify_add_watch": (254, 27),  # would report names of files that cannot be listed
    "listen": (50, 201),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "semget": (64, 190),
    "shmget": (29, 194),
    "socket": (41, 198),
}
_METADATA_CALLS: dict[str, SyscallNumbers] = {
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
"""Calls that Landlock does not check and that would change other files of the same user.

The variants for opened files stay allowed.
"""
_UTIMENSAT: SyscallNumbers = (280, 88)
_FCNTL: SyscallNumbers = (72, 25)
_SIGNAL_CALLS: dict[str, SyscallNumbers] = {
    "pidfd_open": (434, 434),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "tgkill": (234, 131),
    "tkill": (200, 130),
}
"""Calls that signal or open the process in their first argument."""
_KILL: SyscallNumbers = (62, 129)


@cache
def environment_filter(*, has_cgroup: bool, owns_files: bool, machine: str = MACHINE) -> bytes:
    """Return the filter for the agent and its descendants. `owns_files`: the uid owns files on this host."""
    denied = {**_DENIED, **(_METADATA_CALLS if owns_files else {})}
    rules = [seccomp.refuse(number, _DENY) for number in _numbers(denied, machine)]
    if owns_files and (number := _number_on(_UTIMENSAT, machine)) is not None:
        # Without a path the call applies to an opened file. A pointer has two 32-bit halves.
        low, high = ARGUMENT_OFFSETS[1], ARGUMENT_OFFSETS[1] + 4
        rules.append(seccomp.unless_both_zero(number, low, high, _DENY))
    if owns_files:
        rules.append(seccomp.protect_other_processes(machine, _DENY))
    types = tuple(kind | flags for kind in _SOCK_TYPE for flags in _SOCK_FLAGS)
    rules.append(unless_argument_is(SOCKETPAIR[machine], ARGUMENT_OFFSETS[1], types, _DENY))
    if (number := _number_on(_FCNTL, machine)) is not None:
        rules.append(if_argument_is(number, ARGUMENT_OFFSETS[1], _SET_OWNER, _DENY))
    requests = (*seccomp.TERMINAL_INJECTION_REQUESTS, _FIOSETOWN, _SIOCSPGRP)
    rules.append(if_argument_is(IOCTL[machine], ARGUMENT_OFFSETS[1], requests, _DENY))
    return seccomp.build_filter(has_cgroup=has_cgroup, machine=machine, first=b"".join(rules))


def action_filter(agent: int, machine: str = MACHINE) -> bytes:
    """Return the filter for an action: it cannot reach the agent, which has the same uid."""
    rules = [
        if_argument_is(number, ARGUMENT_OFFSETS[0], (agent,), _DENY) for number in _numbers(_SIGNAL_CALLS, machine)
    ]
    rules.append(seccomp.protect_process(agent, machine, _DENY))
    if (number := _number_on(_KILL, machine)) is not None:
        its_group = _ALL_PROCESSES + 1 - agent
        rules.append(if_argument_is(number, ARGUMENT_OFFSETS[0], (agent, its_group, _ALL_PROCESSES), _DENY))
    return seccomp.build_filter_of(b"".join(rules), machine)


def _numbers(calls: dict[str, SyscallNumbers], machine: str) -> list[int]:
    return [number for each in calls.values() if (number := _number_on(each, machine)) is not None]


def _number_on(numbers: SyscallNumbers, machine: str) -> int | None:
    return numbers[machine == AARCH64]
