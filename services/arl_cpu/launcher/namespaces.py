"""The walls of a sandbox: its own user, pid, mount, network, ipc and host-name namespaces, and nothing it may undo."""

import os
import signal

from . import mounts, overlay, seccomp, syscalls
from .limits import limit, yield_cores
from .processes import Process, all_processes
from .walls import Layers, Setup

__all__ = ["Namespaces"]

_INSIDE_ID = 1000


class Namespaces:
    """Raised by pid 1 of a fresh pid namespace, whose end the kernel makes the end of all others in it."""

    enters = False
    write_area = mounts.WORKSPACE

    def __init__(self) -> None:
        self._template: overlay.TemplateRoot | None = None

    def prepare(self, base_prefix: str, layers: Layers | None) -> None:
        # Now that this process is in its cgroup: /proc/self/cgroup shows that as the root.
        syscalls.unshare(syscalls.CLONE_NEWCGROUP)
        if layers is not None:
            self._template = overlay.TemplateRoot.opened(layers)
            self.write_area = "/"  # its user may remove any other directory
            _take_the_one_id()
        else:
            sources = mounts.open_sources(base_prefix)
            _take_the_one_id()
            mounts.build_root(sources)
        syscalls.bring_loopback_up()
        syscalls.set_hostname("sandbox")

    def bind(self, setup: Setup) -> None:
        if self._template is not None:
            sizes = {"disk_mib": setup.disk_mib, "memory_mib": setup.memory_mib}
            self._template.build(**sizes, workspace=setup.workspace)
        else:
            mounts.mount_write_area(disk_mib=setup.disk_mib, memory_mib=setup.memory_mib)
        limit(setup, processes=setup.pids + 1)
        if not setup.has_cgroup:
            yield_cores()
        syscalls.drop_capabilities()
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
        # After the last change of uid, which would clear it. The parent is the launcher by now.
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        seccomp.install(has_cgroup=setup.has_cgroup)

    def enter(self) -> None:
        pass

    def others(self) -> list[Process]:
        return [process for process in all_processes() if process.pid != 1]

    def signal_all(self, number: int) -> None:
        """One system call; the kernel lets no process fork out of it."""
        try:
            os.kill(-1, number)
        except ProcessLookupError:
            return

    def write_area_is_full(self) -> bool:
        state = os.statvfs(self.write_area)
        return state.f_bavail == 0 or state.f_favail == 0

    def write_area_used_bytes(self) -> int:
        state = os.statvfs(self.write_area)
        return (state.f_blocks - state.f_bfree) * state.f_frsize

    def exceeded(self) -> str | None:
        return None


def _take_the_one_id() -> None:
    """Capabilities over the namespaces stay: none of the ids here is root."""
    with open("/proc/self/setgroups") as file:
        if file.read().strip() == "allow":
            os.setgroups([])
    os.setresgid(_INSIDE_ID, _INSIDE_ID, _INSIDE_ID)
    os.setresuid(_INSIDE_ID, _INSIDE_ID, _INSIDE_ID)
