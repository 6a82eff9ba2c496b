"""Isolation without namespaces: Landlock rules, a seccomp filter, limits, and a separate uid if the launcher is root.

There are two layers. The agent's layer keeps signals and abstract sockets inside, so its `kill(-1)` reaches only this
environment. The action's layer restricts it to its files: the agent must read /proc, actions must not.
"""

import os
import signal
import struct
import time
from contextlib import suppress

from arl_cpu.contract.verifier_packages import package_directory
from arl_cpu.launcher.isolation import landlock_filter, seccomp
from arl_cpu.launcher.isolation.isolation import AgentSetup, TemplateLayers, apply_limits, lower_priority
from arl_cpu.launcher.isolation.mounts import DEVICES, ETC_PATHS, SYSTEM_DIRECTORIES
from arl_cpu.launcher.linux import syscalls
from arl_cpu.launcher.linux.processes import ProcessInfo, descendants, signal_until_gone

__all__ = ["LandlockIsolation", "landlock_abi"]

_CREATE, _ADD, _RESTRICT, _VERSION, _PATH_BENEATH = 444, 445, 446, 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 0x1, 0x2, 0x4, 0x8
_MAKE_CHAR, _MAKE_BLOCK = 0x40, 0x800
_TRUNCATE, _IOCTL = 0x4000, 0x8000
_RIGHTS_BY_ABI = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 5: 0xFFFF}
"""Access rights by Landlock ABI version. Each of them is refused unless a rule grants it."""
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
_READ_AND_RUN = _EXECUTE | _READ_FILE | _READ_DIR
_ALL_TCP, _MIN_ABI_FOR_TCP = 0x3, 4
_ALL_SCOPES, MIN_ABI_FOR_SCOPES = 0x3, 6
_READABLE_PROC_FILES = ("cpuinfo", "filesystems", "loadavg", "meminfo", "stat", "uptime", "version")

_MIB = 1 << 20
_SHARED_UID_SLACK = 64
_MIN_ENTRIES, _ENTRIES_PER_MIB = 65536, 256
_SCAN_INTERVAL_FACTOR = 10
"""A scan of the disk usage takes at most about a tenth of the time."""


def landlock_abi() -> int:
    """Return the ABI version, or 0 if the kernel has no Landlock or does not enable it."""
    try:
        return syscalls.raw_syscall(_CREATE, "landlock", None, 0, _VERSION)
    except OSError:
        return 0


class LandlockIsolation:
    """The isolation of an agent that is an ordinary process of the host. Its processes are killed when it ends."""

    confines_actions = True

    def __init__(self) -> None:
        self._abi = landlock_abi()
        self.write_area = ""
        self._ruleset = -1
        self._limit_bytes = self._known_bytes = self._max_entries = 0
        self._pids: int | None = None
        self._lowers_priority = self._signals_at_once = False
        self._next_scan = 0.0

    def prepare(self, base_prefix: str, layers: TemplateLayers | None) -> None:
        """Do nothing: rules and uid are cheap, and after a uid change no rule can be made for the files of others."""

    def apply_setup(self, setup: AgentSetup) -> None:
        """Restrict the agent permanently: files, signals, system calls and, if available, the uid."""
        self.write_area = os.path.dirname(setup.workspace)
        self._limit_bytes = setup.disk_mib * _MIB
        self._max_entries = max(_MIN_ENTRIES, setup.disk_mib * _ENTRIES_PER_MIB)
        self._ruleset = _file_ruleset(self._abi, self.write_area, setup.base_prefix)
        owns_files = setup.host_id is None
        self._pids = setup.pids if owns_files and not setup.has_cgroup else None
        self._lowers_priority = not setup.has_cgroup
        self._signals_at_once = self._abi >= MIN_ABI_FOR_SCOPES or not owns_files
        with suppress(PermissionError):  # an ordinary user has nothing to drop, and no_new_privs is set below
            syscalls.empty_bounding_set()
        if setup.host_id is not None:
            _switch_uid(setup.host_id)
        apply_limits(setup, processes=_process_limit(setup))
        syscalls.empty_capability_sets()
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        os.chdir(setup.workspace)
        if self._abi >= MIN_ABI_FOR_SCOPES:
            scope = syscalls.raw_syscall(_CREATE, "landlock scope", struct.pack("QQQ", 0, 0, _ALL_SCOPES), 24, 0)
            syscalls.raw_syscall(_RESTRICT, "landlock scope", scope, 0)
            os.close(scope)
        seccomp.install_filter(landlock_filter.environment_filter(has_cgroup=setup.has_cgroup, owns_files=owns_files))
        self._entries_of_proc = len(os.listdir("/proc"))
        self._action_filter = landlock_filter.action_filter(os.getpid())

    def confine_action(self) -> None:
        """Restrict the calling process to the files of its environment."""
        if self._lowers_priority:
            lower_priority()  # below the agent's priority, because the agent must be able to kill it
        syscalls.raw_syscall(_RESTRICT, "landlock", self._ruleset, 0)
        seccomp.install_filter(self._action_filter)

    def other_processes(self) -> list[ProcessInfo]:
        """Return the descendants of the agent."""
        return descendants(os.getpid())

    def signal_all(self, number: int) -> None:
        """Send a signal with one system call, so no process escapes by forking.

        The kernel limits it to this environment.
        """
        if not self._signals_at_once:
            signal_until_gone(self.other_processes, number)
            return
        try:
            os.kill(-1, number)
        except (ProcessLookupError, PermissionError):
            return

    def write_area_is_full(self) -> bool:
        """Return True if the used bytes reach the limit."""
        self._known_bytes = self._used_bytes()
        return self._known_bytes >= self._limit_bytes

    def write_area_used_bytes(self) -> int:
        """Return 0: the write area uses no memory."""
        return 0

    def socket_bytes(self) -> int:
        """Return 0: the sockets of all environments are in one network namespace."""
        return 0

    def exceeded_limit(self) -> str | None:
        """Return `pids` or `disk` if polling found the limit exceeded, else None."""
        if self._pids is not None and self._has_more_than(self._pids):
            return "pids"
        began = time.monotonic()
        if began < self._next_scan:
            return None
        known, self._known_bytes = self._known_bytes, self._used_bytes()
        self._next_scan = began + (time.monotonic() - began) * _SCAN_INTERVAL_FACTOR
        # Usage above the limit may still shrink; only growth counts.
        return "disk" if self._known_bytes > max(self._limit_bytes, known) else None

    def _has_more_than(self, pids: int) -> bool:
        """Return True if there are more processes. The count is slow, so it runs only if /proc has grown.

        All processes are stopped meanwhile, because a fork flood would leave little time for it.
        """
        entries = len(os.listdir("/proc"))
        self._entries_of_proc = min(self._entries_of_proc, entries)
        if entries - self._entries_of_proc <= pids:
            return False
        self.signal_all(signal.SIGSTOP)
        if len(self.other_processes()) > pids:
            return True
        self.signal_all(signal.SIGCONT)
        return False

    def _used_bytes(self) -> int:
        """Return the bytes used in the write area. Too many files count as more than the limit."""
        used, entries, frontier = 0, 0, [self.write_area]
        while frontier:
            try:
                with os.scandir(frontier.pop()) as found:
                    for entry in found:
                        entries += 1
                        state = entry.stat(follow_symlinks=False)
                        used += state.st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            frontier.append(entry.path)
            except OSError:
                continue  # changed meanwhile, or unreadable
            if entries > self._max_entries or used > self._limit_bytes:
                return self._limit_bytes + used
        return used


def _file_ruleset(version: int, area: str, base_prefix: str) -> int:
    """Create a ruleset: read and run the system, use devices without state, and do everything in the write area."""
    rights = max(value for since, value in _RIGHTS_BY_ABI.items() if since <= version)
    attributes = struct.pack("Q", rights)
    if version >= _MIN_ABI_FOR_TCP:
        attributes += struct.pack("Q", _ALL_TCP)
    ruleset = syscalls.raw_syscall(_CREATE, "landlock", attributes, len(attributes), 0)
    shown = [f"/{name}" for name in (*SYSTEM_DIRECTORIES, *(f"etc/{name}" for name in ETC_PATHS))]
    packages = package_directory()
    for path in (*shown, base_prefix, *([packages] if packages is not None else ())):
        _allow(ruleset, path, _READ_AND_RUN & rights)
    # With namespaces this file is absent. Here programs see that it exists, and Node fails if it is unreadable.
    _allow(ruleset, "/etc/ssl/openssl.cnf", _READ_FILE)
    for name in _READABLE_PROC_FILES:
        _allow(ruleset, f"/proc/{name}", _READ_FILE)
    for name in DEVICES:
        _allow(ruleset, f"/dev/{name}", (_READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL) & rights)
    _allow(ruleset, area, rights & ~(_MAKE_CHAR | _MAKE_BLOCK))
    return ruleset


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        file = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # hosts differ; a missing path needs no rule
    if not os.path.isdir(f"/proc/self/fd/{file}"):
        rights &= _FILE_RIGHTS
    try:
        syscalls.raw_syscall(_ADD, f"landlock {path}", ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, file), 0)
    finally:
        os.close(file)


def _switch_uid(host_id: int) -> None:
    """Switch to another uid permanently: no capability is left and none can be acquired."""
    os.setgroups([])
    os.setresgid(host_id, host_id, host_id)
    os.setresuid(host_id, host_id, host_id)


def _process_limit(setup: AgentSetup) -> int:
    """Return the process limit. With a shared uid it only stops floods; the agent itself counts processes."""
    if setup.has_cgroup or setup.host_id is not None:
        return setup.pids + 1
    return _count_tasks(os.getuid()) + setup.pids + _SHARED_UID_SLACK


def _count_tasks(uid: int) -> int:
    count = 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == uid:
                count += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue
    return count
