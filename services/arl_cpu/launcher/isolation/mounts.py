"""The file tree of a sandbox: read-only system directories of the host and one bounded writable area."""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass

from arl_cpu.contract.verifier_packages import PLACE, package_directory
from arl_cpu.launcher.isolation import system_files
from arl_cpu.launcher.isolation.isolation import AgentSetup
from arl_cpu.launcher.linux import syscalls
from arl_cpu.launcher.linux.syscalls import MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_PRIVATE, MS_REC

__all__ = [
    "WORKSPACE",
    "WRITABLE_PATHS",
    "RootSources",
    "build_root",
    "make_mounts_private",
    "mount_proc",
    "mount_write_area",
    "open_devices",
    "open_sources",
    "populate_dev",
    "write_area_options",
]

WORKSPACE = "/workspace"

_WRITE_AREA = "/tmp"  # noqa: S108  # inside
WRITABLE_PATHS = {"workspace": WORKSPACE, "shm": "/dev/shm", "var": "/var/tmp", "mnt": "/mnt", "tmp": _WRITE_AREA}  # noqa: S108
"""Mount point by part of the write area."""
_ROOT = "/tmp"  # noqa: S108  # exists on every host; hidden only in the sandbox's own mount namespace
SYSTEM_DIRECTORIES = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
ETC_PATHS = (
    "alternatives",
    "ca-certificates",
    "debian_version",
    *(f"java-{version}-openjdk" for version in (8, 11, 17, 21, 25)),  # of Debian; Java does not start without them
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "os-release",
    "pki/tls",
    "protocols",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
)
GENERATED_FILES = {
    "etc/passwd": f"root:x:0:0:root:{WORKSPACE}:/usr/sbin/nologin\ndaemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n"
    "sandbox:x:1000:1000::/workspace:/bin/bash\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\ndaemon:x:1:\ntty:x:5:\nusers:x:100:\nsandbox:x:1000:\nnogroup:x:65534:\n",
    **system_files.NETWORK_FILES,
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
DEV_LINKS = {
    "fd": "/proc/self/fd",
    "ptmx": "pts/ptmx",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
EMPTY_DIRECTORIES = ("home", "opt", "root", "run/lock", "srv", "var/cache", "var/lib", "var/log")
"""Directories that the template `host` shows without their contents on the node."""
MASKED_FILES = ("kcore", "keys", "timer_list", "sysrq-trigger", "kallsyms", "kmsg", "sched_debug")
_READ_ONLY_PROC = ("sys", "irq", "bus", "fs", "pressure")
"""Thousands of triggers on `pressure` delay the end of their process by a minute."""
_MAX_TERMINALS = 32
"""Pseudo-terminals of an environment. All environments share `kernel.pty.max`, 4096 by default."""
_MIN_INODES, _INODES_PER_DISK_MIB, _INODES_PER_MEMORY_MIB = 4096, 256, 128
"""A page of 4 KiB is the smallest file with content. Only a cgroup counts the memory of inodes, 1 KiB each."""
_PROCESS_MIB = 16
"""Memory that files cannot use."""
_MAX_INODES = 300_000
"""The kernel removes 500,000 in a second. An environment that ends with its action holds its cores until then."""


@dataclass(frozen=True, slots=True)
class RootSources:
    """Host files that the sandbox shows, opened while this process may access them. Keys are paths below the root."""

    binds: dict[str, int]
    links: dict[str, str]
    copies: dict[str, bytes]
    devices: dict[str, int]
    sys: dict[str, int]


def open_sources(base_prefix: str) -> RootSources:
    """Open the host's tree in this mount namespace, before the privileged uid is given up."""
    make_mounts_private()
    sources = RootSources({}, {}, {}, open_devices(), system_files.open_sys())
    for path in (*SYSTEM_DIRECTORIES, *(f"etc/{name}" for name in ETC_PATHS)):
        _open_source(sources, path)
    if base_prefix == "/":
        raise OSError("the interpreter's prefix is the root directory of the host")
    if os.path.commonpath([base_prefix, "/usr"]) != "/usr":
        sources.binds[base_prefix.lstrip("/")] = os.open(base_prefix, os.O_PATH | os.O_CLOEXEC)
    packages = package_directory()
    if packages is not None:
        sources.binds[PLACE.lstrip("/")] = os.open(packages, os.O_PATH | os.O_CLOEXEC)
    return sources


def make_mounts_private() -> None:
    """Keep later mounts invisible to other mount namespaces."""
    syscalls.mount("none", "/", None, MS_REC | MS_PRIVATE)


def open_devices() -> dict[str, int]:
    """Open the host's devices that a sandbox may use, by name."""
    there = [name for name in DEVICES if os.path.exists(f"/dev/{name}")]
    return {name: os.open(f"/dev/{name}", os.O_PATH | os.O_CLOEXEC) for name in there}


def build_root(sources: RootSources) -> None:
    """Assemble the tree, make it the root and detach the host's. Nothing in it is writable yet."""
    syscalls.mount("tmpfs", _ROOT, "tmpfs", MS_NOSUID | MS_NODEV, "size=8m,nr_inodes=2048,mode=0755")
    os.mkdir(f"{_ROOT}/proc")
    _mount_sources(sources)
    os.mkdir(f"{_ROOT}/dev")
    populate_dev(_ROOT, sources.devices)
    mount_proc(_ROOT)
    os.mkdir(f"{_ROOT}/sys")
    system_files.mount_sys(_ROOT, sources.sys)
    for place in (*WRITABLE_PATHS.values(), *(f"/{name}" for name in EMPTY_DIRECTORIES)):
        os.makedirs(f"{_ROOT}{place}", exist_ok=True)
    syscalls.pivot_root(_ROOT)
    syscalls.make_readonly("/", recursive=False)


def mount_write_area(setup: AgentSetup) -> None:
    """Mount one tmpfs for all writable directories, so that its size bounds their sum in bytes and inodes."""
    options = write_area_options(setup)
    syscalls.mount("tmpfs", _WRITE_AREA, "tmpfs", MS_NOSUID | MS_NODEV, options)
    files = {}
    for name, place in WRITABLE_PATHS.items():
        os.mkdir(f"{_WRITE_AREA}/{name}")
        os.chmod(f"{_WRITE_AREA}/{name}", 0o755 if place == WORKSPACE else 0o1777)
        files[place] = os.open(f"{_WRITE_AREA}/{name}", os.O_PATH | os.O_CLOEXEC)
    # The mount point of the area itself is the last entry; after it only the parts are visible.
    for place, file in files.items():
        syscalls.bind_mount(file, place)
        os.close(file)
    os.chdir(WORKSPACE)


def write_area_options(setup: AgentSetup) -> str:
    """Return the mount options of the tmpfs that contains everything writable."""
    # The files are in memory. If they could fill it, no program could start to delete them.
    size_mib = min(setup.disk_mib, max(setup.memory_mib - _PROCESS_MIB, setup.memory_mib // 2))
    inodes = min(max(_MIN_INODES, setup.disk_mib * _INODES_PER_DISK_MIB), _MAX_INODES)
    if not setup.has_cgroup:
        inodes = min(inodes, max(_MIN_INODES, setup.memory_mib * _INODES_PER_MEMORY_MIB))
    return f"size={size_mib}m,nr_inodes={inodes},mode=0755"


def _open_source(sources: RootSources, path: str) -> None:
    try:
        mode = os.lstat(f"/{path}").st_mode
        if stat.S_ISLNK(mode):
            sources.links[path] = os.readlink(f"/{path}")
        elif stat.S_ISDIR(mode):
            sources.binds[path] = os.open(f"/{path}", os.O_PATH | os.O_CLOEXEC)
        else:
            with open(f"/{path}", "rb") as file:
                sources.copies[path] = file.read()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return  # hosts differ; a path that is missing outside is missing inside


def _mount_sources(sources: RootSources) -> None:
    points = _mount_points()
    for path, source in sources.binds.items():
        target = f"{_ROOT}/{path}"
        os.makedirs(target, exist_ok=True)
        _mount_directory(source, target, has_mounts=any(each.startswith(f"/{path}/") for each in points))
        syscalls.make_readonly(target)
        os.close(source)
    for path, link in sources.links.items():
        os.symlink(link, _create_target(path))
    written = {path: text.encode() for path, text in GENERATED_FILES.items()}
    for path, content in {**sources.copies, **written}.items():
        with open(_create_target(path), "wb") as file:
            file.write(content)


def _mount_points() -> list[str]:
    with open("/proc/self/mountinfo") as file:
        return [line.split(" ", 5)[4] for line in file]


def _mount_directory(source: int, target: str, *, has_mounts: bool) -> None:
    """Show a directory of the host with inodes of its own.

    Locks and watches on the host's inodes would reach other environments. An overlay shows no mounts below, and hosts
    allow only two levels of overlays.
    """
    if not has_mounts:
        try:
            # One lower directory is not enough; the second is empty.
            options = f"lowerdir=/proc/self/fd/{source}:{_ROOT}/proc"
            syscalls.mount("overlay", target, "overlay", MS_NOSUID | MS_NODEV, options)
            return
        except OSError:
            pass
    syscalls.bind_mount(source, target)


def populate_dev(root: str, devices: Mapping[str, int]) -> None:
    """Create the few devices that every program may use, and own pseudo-terminals. Closes the opened devices."""
    for name, source in devices.items():
        target = f"{root}/dev/{name}"
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))
        syscalls.bind_mount(source, target)
        os.close(source)
    os.mkdir(f"{root}/dev/pts")
    options = f"newinstance,ptmxmode=0666,mode=0620,max={_MAX_TERMINALS}"
    syscalls.mount("devpts", f"{root}/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, options)
    os.mkdir(f"{root}/dev/mqueue")
    syscalls.mount("mqueue", f"{root}/dev/mqueue", "mqueue", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for name, link in DEV_LINKS.items():
        os.symlink(link, f"{root}/dev/{name}")


def mount_proc(root: str) -> None:
    """Mount this pid namespace's /proc without entries that reveal or change the host. The directory must exist."""
    proc = f"{root}/proc"
    syscalls.mount("proc", proc, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    null = os.open(f"{root}/dev/null", os.O_PATH | os.O_CLOEXEC)
    for name in MASKED_FILES:
        if os.path.exists(f"{proc}/{name}"):
            syscalls.bind_mount(null, f"{proc}/{name}")
    os.close(null)
    for name in _READ_ONLY_PROC:
        if os.path.exists(f"{proc}/{name}"):
            file = os.open(f"{proc}/{name}", os.O_PATH | os.O_CLOEXEC)
            syscalls.bind_mount(file, f"{proc}/{name}")
            os.close(file)
            syscalls.make_readonly(f"{proc}/{name}")


def _create_target(path: str) -> str:
    target = f"{_ROOT}/{path}"
    os.makedirs(os.path.dirname(target), exist_ok=True)
    return target
