"""Isolation by user, pid, mount, network, ipc and uts namespaces. The sandbox cannot undo it."""

import os
from contextlib import suppress

from arl_cpu.launcher.isolation import mounts, overlay, seccomp, system_files, users
from arl_cpu.launcher.isolation.isolation import AgentSetup, TemplateLayers, apply_limits, lower_priority
from arl_cpu.launcher.linux import syscalls
from arl_cpu.launcher.linux.processes import ProcessInfo, all_processes
from arl_cpu.launcher.linux.socket_memory import SocketMemory

__all__ = ["NamespaceIsolation"]

_INSIDE_ID, _ROOT_ID = 1000, 0
_SOCKET_BUFFERS = {"tcp_rmem": "4096 8192 6291456"}
"""Smallest, first and largest size in bytes."""


class NamespaceIsolation:
    """The isolation of pid 1 in a new pid namespace. The kernel kills all other processes in it when pid 1 ends."""

    confines_actions = False
    write_area = mounts.WORKSPACE

    def __init__(self) -> None:
        self._template: overlay.TemplateRoot | None = None
        self._sockets: SocketMemory | None = None

    def prepare(self, base_prefix: str, layers: TemplateLayers | None) -> None:
        """Build the file tree and switch to the sandbox's uid."""
        _limit_socket_buffers()
        # This process is in its cgroup by now, so /proc/self/cgroup shows that cgroup as the root.
        syscalls.unshare(syscalls.CLONE_NEWCGROUP)
        if layers is not None:
            self._template = overlay.TemplateRoot.open_layers(layers)
            self.write_area = "/"  # the sandbox user may remove any other directory
            _switch_to_sandbox_uid()
        else:
            sources = mounts.open_sources(base_prefix)
            _switch_to_sandbox_uid()
            mounts.build_root(sources)
        syscalls.bring_loopback_up()
        syscalls.set_hostname(system_files.HOST_NAME)

    def apply_setup(self, setup: AgentSetup) -> None:
        """Mount the write area, apply limits and drop the capabilities that root inside does not need."""
        if self._template is not None:
            self._template.build(setup)
        else:
            mounts.mount_write_area(setup)
            if setup.user is not None:
                owner = users.find_user(setup.user)
                os.chown(mounts.WORKSPACE, owner.uid, owner.gid)
        if setup.watches_memory:
            self._sockets = SocketMemory()
        if setup.has_cgroup:
            system_files.mount_cgroups()
        apply_limits(setup, processes=setup.pids + 1)
        if not setup.has_cgroup:
            lower_priority()
        if setup.user is None or self._template is None:
            syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)  # else set-uid programs of the image work inside
        seccomp.install_default_filter(has_cgroup=setup.has_cgroup)
        syscalls.limit_capabilities(users.KEPT_CAPABILITIES if setup.user is not None else ())
        # After the last change of uid, which would clear the setting. The launcher is the parent by now.
        syscalls.protect_agent()

    def confine_action(self) -> None:
        """Do nothing: the namespaces already confine the action."""

    def other_processes(self) -> list[ProcessInfo]:
        """Return every process of the pid namespace except the agent."""
        return [process for process in all_processes() if process.pid != 1]

    def signal_all(self, number: int) -> None:
        """Send a signal with one system call, which no process can escape by forking."""
        try:
            os.kill(-1, number)
        except ProcessLookupError:
            return

    def write_area_is_full(self) -> bool:
        """Return True if the write area has no free blocks or inodes."""
        state = os.statvfs(self.write_area)
        return state.f_bavail == 0 or state.f_favail == 0

    def write_area_used_bytes(self) -> int:
        """Return the used bytes of the write area."""
        state = os.statvfs(self.write_area)
        return (state.f_blocks - state.f_bfree) * state.f_frsize

    def socket_bytes(self) -> int:
        """Return the bytes in the queues of all sockets."""
        return self._sockets.used_bytes() if self._sockets is not None else 0

    def exceeded_limit(self) -> str | None:
        return None


def _limit_socket_buffers() -> None:
    """Let TCP connections begin with small buffers, which grow while memory permits.

    Without memory, the kernel still grants each connection one segment of the first window.
    """
    for name, sizes in _SOCKET_BUFFERS.items():
        # In a container /proc/sys may be read-only.
        with suppress(OSError), open(f"/proc/sys/net/ipv4/{name}", "w") as file:
            file.write(sizes)


def _switch_to_sandbox_uid() -> None:
    """Switch to root inside, or to the only uid. Capabilities over the namespaces stay: no id was root inside."""
    inside = _ROOT_ID if users.has_id_range() else _INSIDE_ID
    with open("/proc/self/setgroups") as file:
        if file.read().strip() == "allow":
            os.setgroups([])
    os.setresgid(inside, inside, inside)
    os.setresuid(inside, inside, inside)
