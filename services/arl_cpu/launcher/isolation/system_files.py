"""Files of the system that programs expect in a container: parts of /sys, the own cgroup, message queues, own names.

Runtimes size their heaps and thread pools by them. Without the limit of the own cgroup, a Java or Node program sizes
its heap by the memory of the node and is killed.
"""

import os
from collections.abc import Mapping
from contextlib import suppress

from arl_cpu.launcher.linux import syscalls
from arl_cpu.launcher.linux.syscalls import MS_NODEV, MS_NOEXEC, MS_NOSUID

__all__ = ["HOST_NAME", "NETWORK_FILES", "add_network_files", "mount_cgroups", "mount_sys", "open_sys"]

HOST_NAME = "sandbox"
NETWORK_FILES = {
    "etc/hosts": f"127.0.0.1\tlocalhost {HOST_NAME}\n::1\tlocalhost ip6-localhost ip6-loopback\n",
    "etc/hostname": f"{HOST_NAME}\n",
    "etc/resolv.conf": "",
}
"""Files that engines write into each container, by path below the root."""
SHOWN_PARTS = (
    "devices/system/cpu",
    "devices/system/node",
    "kernel/mm/hugepages",
    "kernel/mm/transparent_hugepage",
)
"""Parts of the host's /sys that describe processors and memory pages. Devices and firmware stay hidden."""
LOOPBACK = {
    "address": "00:00:00:00:00:00",
    "broadcast": "00:00:00:00:00:00",
    "carrier": "1",
    "flags": "0x9",
    "ifindex": "1",
    "mtu": "65536",
    "operstate": "unknown",
    "tx_queue_len": "1000",
    "type": "772",
}
"""Files of the only interface of an environment."""
V1_CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "pids")
_CGROUPS = "/sys/fs/cgroup"
_READ_ONLY = 0x1
_FLAGS = MS_NOSUID | MS_NODEV | MS_NOEXEC


def open_sys() -> dict[str, int]:
    """Open the shown parts of the host's /sys, before the host's tree is detached."""
    parts = {}
    for part in SHOWN_PARTS:
        with suppress(OSError):
            parts[part] = os.open(f"/sys/{part}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    return parts


def mount_sys(root: str, parts: Mapping[str, int]) -> None:
    """Mount /sys with the parts, and close them. The directory must exist."""
    sys = f"{root}/sys"
    syscalls.mount("tmpfs", sys, "tmpfs", _FLAGS, "size=256k,nr_inodes=128,mode=0755")
    for part, source in parts.items():
        os.makedirs(f"{sys}/{part}")
        syscalls.bind_mount(source, f"{sys}/{part}")
        syscalls.make_readonly(f"{sys}/{part}")
        os.close(source)
    os.makedirs(f"{sys}/fs/cgroup")
    loopback = f"{sys}/devices/virtual/net/lo"
    os.makedirs(loopback)
    for name, value in LOOPBACK.items():
        with open(f"{loopback}/{name}", "w") as file:
            file.write(f"{value}\n")
    os.makedirs(f"{sys}/class/net")
    os.symlink("../../devices/virtual/net/lo", f"{sys}/class/net/lo")
    syscalls.make_readonly(sys, recursive=False)


def mount_cgroups() -> None:
    """Mount the own cgroup read-only, as a container sees it. Call it in the own cgroup namespace.

    A host that does not allow it shows an empty directory.
    """
    hierarchies = _v1_hierarchies()
    with suppress(OSError):
        if not hierarchies:
            syscalls.mount("cgroup2", _CGROUPS, "cgroup2", _FLAGS | _READ_ONLY)
            return
        syscalls.mount("tmpfs", _CGROUPS, "tmpfs", _FLAGS, "size=64k,nr_inodes=32,mode=0755")
        for name, options in hierarchies.items():
            os.mkdir(f"{_CGROUPS}/{name}")
            syscalls.mount("cgroup", f"{_CGROUPS}/{name}", "cgroup", _FLAGS | _READ_ONLY, options)
        syscalls.make_readonly(_CGROUPS, recursive=False)


def _v1_hierarchies() -> dict[str, str]:
    """Return the options of the hierarchy of each controller of version 1 by name, from the own cgroups."""
    found = {}
    with open("/proc/self/cgroup") as file:
        for line in file:
            _, names, _ = line.split(":", 2)
            shown = [name for name in names.split(",") if name in V1_CONTROLLERS]
            if shown:
                found[",".join(shown)] = names
    return found


def add_network_files() -> None:
    """Write the files that an image lacks. Call it when the image is the root directory.

    An image whose files cannot be changed stays as it is.
    """
    for path, content in NETWORK_FILES.items():
        with suppress(OSError):
            if _is_missing(f"/{path}"):
                os.makedirs("/etc", exist_ok=True)
                with open(f"/{path}", "x" if not os.path.lexists(f"/{path}") else "w") as file:
                    file.write(content)


def _is_missing(path: str) -> bool:
    """Return True if the file does not exist or is empty. Links, such as those of systemd-resolved, are kept."""
    if os.path.islink(path):
        return False
    return not os.path.exists(path) or (os.path.isfile(path) and os.path.getsize(path) == 0)
