"""A BPF filter that refuses system calls that no sandbox needs. It is a deny list, so that tools continue to work.

Programs may trace their own processes. The kernel applies the filter after a tracer's changes (Linux 4.8). The agent is
not dumpable, so no process without capabilities can trace it.
"""

import ctypes
import errno
import struct
from collections.abc import Sequence
from functools import cache

from arl_cpu.launcher.linux.syscalls import AARCH64, MACHINE, X86_64, prctl

__all__ = [
    "ARGUMENT_OFFSETS",
    "IOCTL",
    "SOCKETPAIR",
    "TERMINAL_INJECTION_REQUESTS",
    "build_filter",
    "build_filter_of",
    "if_argument_is",
    "install_default_filter",
    "install_filter",
    "protect_other_processes",
    "protect_process",
    "refuse",
    "unless_argument_is",
    "unless_both_zero",
]

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_LOAD, _JEQ, _JGE, _JSET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_OFFSET, _ARCH_OFFSET = 0, 4
ARGUMENT_OFFSETS = (16, 24, 32)
"""Offsets of the low halves of the first three arguments."""
_AUDIT_ARCH = {X86_64: 0xC000003E, AARCH64: 0xC00000B7}
_X32_BIT = 0x40000000
_NEW_NAMESPACES = 0x7E020000
_SOCKET_FAMILIES = (1, 2, 10)
"""AF_UNIX, AF_INET, AF_INET6. A network namespace does not cover vsock; other families only add attack surface."""
_NETLINK, _NETLINK_ROUTE = 16, 0
"""Programs list network interfaces by route netlink. Its other protocols only add attack surface."""
TERMINAL_INJECTION_REQUESTS = (0x5412, 0x541C, 0x5423)
"""TIOCSTI and TIOCLINUX inject terminal input. TIOCSETD changes the line discipline, after which it is no terminal."""

# name: (x86_64, aarch64); None if the architecture has no such call.
_DENIED: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mbind": (237, 235),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "set_mempolicy": (238, 237),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "uselib": (134, None),
    "ustat": (136, None),
    "vhangup": (153, 58),
}
_CLONE = {X86_64: 56, AARCH64: 220}
_CLONE3 = 435
_SOCKET = {X86_64: 41, AARCH64: 198}
SOCKETPAIR = {X86_64: 53, AARCH64: 199}
IOCTL = {X86_64: 16, AARCH64: 29}
_PROCESS_CALLS = {
    "prlimit64": (302, 261),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
}
"""Calls that change the process in their first argument; 0 is the caller."""
SETPRIORITY, IOPRIO_SET = (141, 140), (251, 30)
PRIO_PROCESS, PRIO_USER, IOPRIO_WHO_PROCESS, IOPRIO_WHO_USER = 0, 2, 1, 3
_INIT_PID = 1
"""The agent in a pid namespace.

An action could lower its file or CPU limits; its failure is an infrastructure error.
"""
_BOUNDED_BY_CGROUPS = {
    "memfd_create": (319, 279),  # memory without a mapping is counted for no process
    "sched_setaffinity": (203, 122),
    "shmget": (29, 194),
}
"""Calls that are refused if no cgroup limits the environment's cores and memory."""


def install_default_filter(*, has_cgroup: bool) -> None:
    """Filter this process and all its descendants permanently. Requires no_new_privs or CAP_SYS_ADMIN."""
    install_filter(build_filter(has_cgroup=has_cgroup))


def install_filter(code: bytes) -> None:
    """Install a BPF filter for this process and its descendants. Requires no_new_privs or CAP_SYS_ADMIN."""
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    prctl(_PR_SET_SECCOMP, _MODE_FILTER, header)


@cache
def build_filter(*, has_cgroup: bool, machine: str = MACHINE, first: bytes = b"") -> bytes:
    """Return the filter as BPF. The rules of `first` take precedence."""
    refused = _ERRNO | errno.EPERM
    code = [_prologue(machine), first]
    denied = _DENIED if has_cgroup else {**_DENIED, **_BOUNDED_BY_CGROUPS}
    code += [refuse(pair[machine == AARCH64], refused) for pair in denied.values()]
    code.append(protect_process(_INIT_PID, machine, refused))
    # glibc falls back to clone, whose flags a filter can read.
    code.append(refuse(_CLONE3, _ERRNO | errno.ENOSYS))
    code.append(_if_called(_CLONE[machine], ARGUMENT_OFFSETS[0], [_instruction(_JSET, _NEW_NAMESPACES, 0, 1)], refused))
    code.append(if_argument_is(IOCTL[machine], ARGUMENT_OFFSETS[1], TERMINAL_INJECTION_REQUESTS, refused))
    code.append(unless_argument_is(SOCKETPAIR[machine], ARGUMENT_OFFSETS[0], _SOCKET_FAMILIES, refused))
    code.append(unless_argument_is(_SOCKET[machine], ARGUMENT_OFFSETS[0], (*_SOCKET_FAMILIES, _NETLINK), refused))
    code.append(_refuse_other_netlink(machine, _ERRNO | errno.EPROTONOSUPPORT))
    return b"".join([*code, _instruction(_RETURN, _ALLOW)])


def _refuse_other_netlink(machine: str, verdict: int) -> bytes:
    """Return a rule that refuses netlink sockets with another protocol than route, as a kernel without it does."""
    body = [
        *(_instruction(_LOAD, ARGUMENT_OFFSETS[0]), _instruction(_JEQ, _NETLINK, 0, 3)),
        *(_instruction(_LOAD, ARGUMENT_OFFSETS[2]), _instruction(_JEQ, _NETLINK_ROUTE, 1, 0)),
        *(_instruction(_RETURN, verdict), _instruction(_LOAD, _NUMBER_OFFSET)),
    ]
    return b"".join([_instruction(_JEQ, _SOCKET[machine], 0, len(body)), *body])


def protect_process(process: int, machine: str, verdict: int) -> bytes:
    """Return rules that refuse changes to the limits and priorities of this process, by its number or by its user."""
    at = machine == AARCH64
    rules = [if_argument_is(pair[at], ARGUMENT_OFFSETS[0], (process,), verdict) for pair in _PROCESS_CALLS.values()]
    for numbers, of_user in ((SETPRIORITY, PRIO_USER), (IOPRIO_SET, IOPRIO_WHO_USER)):
        rules.append(if_argument_is(numbers[at], ARGUMENT_OFFSETS[0], (of_user,), verdict))
        rules.append(if_argument_is(numbers[at], ARGUMENT_OFFSETS[1], (process,), verdict))
    return b"".join(rules)


def protect_other_processes(machine: str, verdict: int) -> bytes:
    """Return rules that protect every process except the caller, for a uid with unrelated processes."""
    at = machine == AARCH64
    rules = [unless_argument_is(pair[at], ARGUMENT_OFFSETS[0], (0,), verdict) for pair in _PROCESS_CALLS.values()]
    for numbers, of_process in ((SETPRIORITY, PRIO_PROCESS), (IOPRIO_SET, IOPRIO_WHO_PROCESS)):
        rules.append(unless_argument_is(numbers[at], ARGUMENT_OFFSETS[0], (of_process,), verdict))
        rules.append(unless_argument_is(numbers[at], ARGUMENT_OFFSETS[1], (0,), verdict))
    return b"".join(rules)


def build_filter_of(rules: bytes, machine: str = MACHINE) -> bytes:
    """Return a filter of these rules only, for a process that already has the default filter."""
    return _prologue(machine) + rules + _instruction(_RETURN, _ALLOW)


def refuse(number: int | None, verdict: int) -> bytes:
    """Return a rule that refuses a system call; empty if the architecture lacks it."""
    if number is None:
        return b""
    return _instruction(_JEQ, number, 0, 1) + _instruction(_RETURN, verdict)


def if_argument_is(number: int, argument: int, values: Sequence[int], verdict: int) -> bytes:
    """Return a rule that refuses a system call if an argument has one of these values."""
    last = len(values) - 1
    tests = [_instruction(_JEQ, value, last - index, index == last) for index, value in enumerate(values)]
    return _if_called(number, argument, tests, verdict)


def unless_argument_is(number: int, argument: int, values: Sequence[int], verdict: int) -> bytes:
    """Return a rule that refuses other values. For the listed values, the following rules decide."""
    count = len(values)
    tests = [_instruction(_JEQ, value, count - index, 0) for index, value in enumerate(values)]
    body = [_instruction(_LOAD, argument), *tests, _instruction(_RETURN, verdict), _instruction(_LOAD, _NUMBER_OFFSET)]
    return b"".join([_instruction(_JEQ, number, 0, len(body)), *body])


def unless_both_zero(number: int, low: int, high: int, verdict: int) -> bytes:
    """Return a rule that refuses a system call unless both halves of an argument are 0."""
    body = [
        *(_instruction(_LOAD, low), _instruction(_JEQ, 0, 0, 2)),
        *(_instruction(_LOAD, high), _instruction(_JEQ, 0, 1, 0)),
        *(_instruction(_RETURN, verdict), _instruction(_LOAD, _NUMBER_OFFSET)),
    ]
    return b"".join([_instruction(_JEQ, number, 0, len(body)), *body])


def _prologue(machine: str) -> bytes:
    """Return the code that checks the architecture and loads the number of the call."""
    code = [
        _instruction(_LOAD, _ARCH_OFFSET),
        _instruction(_JEQ, _AUDIT_ARCH[machine], 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER_OFFSET),
    ]
    if machine == X86_64:
        code += [_instruction(_JGE, _X32_BIT, 0, 1), _instruction(_RETURN, _KILL)]
    return b"".join(code)


def _if_called(number: int, argument: int, tests: list[bytes], verdict: int) -> bytes:
    """Return a rule for one call. If the last test fails, it skips the verdict and the following rules decide."""
    body = [_instruction(_LOAD, argument), *tests, _instruction(_RETURN, verdict), _instruction(_LOAD, _NUMBER_OFFSET)]
    return b"".join([_instruction(_JEQ, number, 0, len(body)), *body])


def _instruction(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, operand)
