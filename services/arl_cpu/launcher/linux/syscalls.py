"""System calls that the standard library lacks. Each raises OSError as `os` would."""

import ctypes
import fcntl
import os
import platform
import signal
import socket
import struct
from collections.abc import Collection

__all__ = [
    "AARCH64",
    "CLONE_ALL",
    "CLONE_NEWCGROUP",
    "MACHINE",
    "X86_64",
    "attach_mount",
    "bind_mount",
    "bring_loopback_up",
    "create_idmapped_mount",
    "detach_tracee",
    "drop_capabilities",
    "empty_bounding_set",
    "empty_capability_sets",
    "enter_namespace",
    "limit_capabilities",
    "make_readonly",
    "mount",
    "open_beneath",
    "open_in_root",
    "owner_of_namespace",
    "pivot_root",
    "prctl",
    "protect_agent",
    "raw_syscall",
    "set_capabilities",
    "set_hostname",
    "sync_file_system",
    "unmount",
    "unshare",
]

X86_64, AARCH64 = "x86_64", "aarch64"
MACHINE = platform.machine()

CLONE_ALL = 0x00020000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
"""CLONE_NEWNS | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET"""
CLONE_NEWCGROUP = 0x02000000

MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x8, 0x1000, 0x4000, 0x40000
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 36, 38

_PIVOT_ROOT = {X86_64: 155, AARCH64: 41}
_CAPSET = {X86_64: 126, AARCH64: 91}
_OPEN_TREE, _MOVE_MOUNT, _OPENAT2, _MOUNT_SETATTR = 428, 429, 437, 442
_AT_RECURSIVE, _AT_FDCWD, _AT_EMPTY_PATH = 0x8000, -100, 0x1000
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV, _ATTR_IDMAP = 0x1, 0x2, 0x4, 0x100000
_OPEN_TREE_CLONE, _MOVE_EMPTY_PATH = 1, 4
_RESOLVE_NO_XDEV, _RESOLVE_NO_MAGICLINKS, _RESOLVE_BENEATH, _RESOLVE_IN_ROOT = 0x01, 0x02, 0x08, 0x10
_CAPABILITY_VERSION_3 = 0x20080522
_NS_GET_USERNS = 0xB701
_PTRACE_DETACH = 17
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Move this process, or its next children, to new namespaces of these kinds."""
    _check_result(_libc.unshare(ctypes.c_int(flags)), "unshare")


def enter_namespace(namespace: int, kind: int) -> None:
    """Enter an opened namespace of this kind (CLONE_NEW…). A mount namespace also sets root and working directory."""
    _check_result(_libc.setns(ctypes.c_int(namespace), ctypes.c_int(kind)), "setns")


def owner_of_namespace(namespace: int) -> int:
    """Open the user namespace that owns a namespace."""
    return fcntl.ioctl(namespace, _NS_GET_USERNS)


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """Mount a file system. Raises `OSError` with the target in its message."""
    encoded = (source.encode(), target.encode(), kind.encode() if kind else None)
    _check_result(_libc.mount(*encoded, ctypes.c_ulong(flags), options.encode()), f"mount {kind or source} on {target}")


def bind_mount(source_fd: int, target: str) -> None:
    """Mount the opened file or directory at `target`, with the mounts below it."""
    mount(f"/proc/self/fd/{source_fd}", target, None, MS_BIND | MS_REC)


def make_readonly(target: str, *, devices: bool = False, recursive: bool = True) -> None:
    """Forbid writes, set-uid and, by default, devices below `target`, in each of its mounts."""
    attributes = _ATTR_RDONLY | _ATTR_NOSUID | (0 if devices else _ATTR_NODEV)
    wanted = struct.pack("QQQQ", attributes, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    _check_result(
        _libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, target.encode(), ctypes.c_uint(flags), wanted, len(wanted)),
        f"mount_setattr {target} (needs Linux 5.12)",
    )


def create_idmapped_mount(path: str, user_namespace: int) -> int:
    """Return a detached read-only mount of `path` whose file owners are translated by that namespace.

    Requires root in the namespace that mounted the file system, and a file system that supports idmapping.
    """
    copy = raw_syscall(_OPEN_TREE, f"open_tree {path}", _AT_FDCWD, path.encode(), _OPEN_TREE_CLONE | os.O_CLOEXEC)
    wanted = struct.pack("QQQQ", _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV | _ATTR_IDMAP, 0, 0, user_namespace)
    try:
        raw_syscall(_MOUNT_SETATTR, f"idmapped mount of {path}", copy, b"", _AT_EMPTY_PATH, wanted, len(wanted))
    except OSError:
        os.close(copy)
        raise
    return copy


def attach_mount(detached_mount: int, target: str) -> None:
    """Attach a mount of `create_idmapped_mount`."""
    raw_syscall(
        _MOVE_MOUNT, f"move_mount to {target}", detached_mount, b"", _AT_FDCWD, target.encode(), _MOVE_EMPTY_PATH
    )


def pivot_root(new_root: str) -> None:
    """Make `new_root` the root and detach the old one."""
    os.chdir(new_root)
    _check_result(_libc.syscall(_PIVOT_ROOT[MACHINE], b".", b"."), "pivot_root")
    unmount(".")
    os.chdir("/")


def unmount(target: str) -> None:
    """Detach a mount."""
    _check_result(_libc.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def set_hostname(name: str) -> None:
    """Set the host name of this UTS namespace."""
    _check_result(_libc.sethostname(name.encode(), len(name)), "sethostname")


def prctl(option: int, argument: int | ctypes.Array[ctypes.c_char] | bytes, more: object = 0) -> None:
    """Call prctl(2) with up to two arguments."""
    first = ctypes.c_ulong(argument) if isinstance(argument, int) else argument
    second = ctypes.c_ulong(more) if isinstance(more, int) else more
    _check_result(_libc.prctl(option, first, second, ctypes.c_ulong(0), ctypes.c_ulong(0)), f"prctl {option}")


def drop_capabilities() -> None:
    """Clear every capability set of this process, including the bounding set."""
    empty_bounding_set()
    empty_capability_sets()


def empty_bounding_set(*, kept: Collection[int] = ()) -> None:
    """Remove all capabilities but these, so that no executed program gains another. Requires CAP_SETPCAP."""
    with open("/proc/sys/kernel/cap_last_cap") as file:
        last = int(file.read())
    for capability in set(range(last + 1)).difference(kept):
        prctl(PR_CAPBSET_DROP, capability)


def empty_capability_sets() -> None:
    """Clear the effective, permitted and inheritable capabilities."""
    _set_capability_bits(0)


def limit_capabilities(kept: Collection[int]) -> None:
    """Remove all capabilities of this process and of programs that it executes, except these below 32."""
    empty_bounding_set(kept=kept)
    set_capabilities(kept)


def set_capabilities(kept: Collection[int]) -> None:
    """Remove all capabilities of this process except these below 32."""
    _set_capability_bits(sum(1 << capability for capability in kept))


def protect_agent() -> None:
    """Forbid dumps and tracing of this process, and end it with its parent. A change of its ids resets both."""
    prctl(PR_SET_DUMPABLE, 0)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def open_beneath(directory: int, path: str, flags: int, mode: int = 0) -> int:
    """Open `path` below the directory. Symbolic links cannot lead out of it, nor through /proc to this process."""
    return _openat2(directory, path, flags, mode, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)


def open_in_root(directory: int, path: str, flags: int) -> int:
    """Open `path` with the directory as root: absolute links and `..` stay inside, and other mounts are refused."""
    return _openat2(directory, path, flags, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS | _RESOLVE_NO_XDEV)


def sync_file_system(file: int) -> None:
    """Flush the whole file system of a file to its device."""
    _check_result(_libc.syncfs(ctypes.c_int(file)), "syncfs")


def bring_loopback_up() -> None:
    """Enable the loopback interface of this network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, struct.pack("16sH14x", b"lo", 0))
        flags = struct.unpack("16sH14x", request)[1] | _IFF_UP
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags))


def detach_tracee(pid: int, signal_number: int) -> None:
    """Stop tracing a stopped process and deliver a signal to it; 0 delivers none."""
    number = ctypes.c_long(signal_number)
    _check_result(_libc.ptrace(ctypes.c_long(_PTRACE_DETACH), ctypes.c_int(pid), ctypes.c_long(0), number), "ptrace")


def raw_syscall(number: int, description: str, *arguments: object) -> int:
    """Make a system call that has no wrapper here. Integers are passed as longs."""
    converted = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return _check_result(_libc.syscall(ctypes.c_long(number), *converted), description)


def _set_capability_bits(kept: int) -> None:
    header, wanted = struct.pack("Ii", _CAPABILITY_VERSION_3, 0), struct.pack("IIIIII", kept, kept, 0, 0, 0, 0)
    _check_result(_libc.syscall(_CAPSET[MACHINE], header, wanted), "capset")


def _openat2(directory: int, path: str, flags: int, mode: int, resolve: int) -> int:
    how = struct.pack("QQQ", flags | os.O_CLOEXEC, mode, resolve)
    return _check_result(_libc.syscall(_OPENAT2, directory, os.fsencode(path), how, len(how)), path)


def _check_result(result: int, description: str) -> int:
    if result < 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno), description)
    return result
