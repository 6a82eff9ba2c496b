"""The file tree of a sandbox with a template: read-only layers below one bounded write area.

overlayfs stores changes and whiteouts in the environment's tmpfs; the layers on disk are never written. Only the
devices, /proc and /dev/shm do not come from the template.
"""

import os
import stat
from contextlib import suppress
from dataclasses import dataclass

from arl_cpu.launcher.isolation import accounts, mounts, system_files, users
from arl_cpu.launcher.isolation.isolation import AgentSetup, TemplateLayers
from arl_cpu.launcher.isolation.mounts import WORKSPACE
from arl_cpu.launcher.linux import syscalls
from arl_cpu.launcher.linux.syscalls import MS_NODEV, MS_NOSUID

__all__ = ["TemplateRoot", "expose_upper_directory"]

_STAGE = "/tmp"  # noqa: S108  # exists on every host; hidden only in the sandbox's own mount namespace
_ROOT, _WRITE_AREA, _LAYERS = f"{_STAGE}/root", f"{_STAGE}/area", f"{_STAGE}/layers"
_NEW_MOUNTS = 0x00020000
_MOUNT_POINTS = ("dev", "proc", "sys", "tmp")


@dataclass(frozen=True, slots=True)
class TemplateRoot:
    """The host files that the tree needs, opened before the privileged uid is given up."""

    layers: TemplateLayers
    directory: int
    devices: dict[str, int]
    sys: dict[str, int]

    @classmethod
    def open_layers(cls, layers: TemplateLayers) -> "TemplateRoot":
        """Open the layers and the host's devices."""
        mounts.make_mounts_private()
        directory = layers.idmapped_mount
        if directory is None:
            directory = os.open(layers.directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return cls(layers, directory, mounts.open_devices(), system_files.open_sys())

    def build(self, setup: AgentSetup) -> None:
        """Assemble the tree, make it the root and detach the host's."""
        syscalls.mount("tmpfs", _STAGE, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,nr_inodes=1024,mode=0755")
        for path in (_ROOT, _WRITE_AREA, _LAYERS):
            os.mkdir(path)
        self._mount_layers()
        options = mounts.write_area_options(setup)
        syscalls.mount("tmpfs", _WRITE_AREA, "tmpfs", MS_NOSUID | MS_NODEV, options)
        self._mount_overlay(has_users=setup.user is not None)
        syscalls.unmount(_LAYERS)
        for name in _MOUNT_POINTS:
            _make_mount_point(name)
        self._mount_dev()
        mounts.mount_proc(_ROOT)
        system_files.mount_sys(_ROOT, self.sys)
        syscalls.pivot_root(_ROOT)
        # From here on, links of the template cannot lead to the host.
        if setup.user in (None, users.HOST_USER):
            accounts.add_accounts(setup.home)
        else:
            accounts.add_root()
        _make_directories(setup)
        system_files.add_network_files()
        os.chdir(setup.workspace)

    def _mount_layers(self) -> None:
        if self.layers.idmapped_mount is not None:
            syscalls.attach_mount(self.directory, _LAYERS)
        else:
            syscalls.bind_mount(self.directory, _LAYERS)
        os.close(self.directory)

    def _mount_overlay(self, *, has_users: bool) -> None:
        for name, mode in (("upper", 0o755), ("work", 0o700), ("shm", 0o1777)):
            os.mkdir(f"{_WRITE_AREA}/{name}")
            os.chmod(f"{_WRITE_AREA}/{name}", mode)
        # Mount options must fit in one page and each layer has a long name, so links shorten them.
        os.chdir(_STAGE)
        for number, tree in enumerate(self.layers.trees):
            os.symlink(f"{_LAYERS}/{tree}", f"{_STAGE}/{number}")
        below = ":".join(str(number) for number in range(len(self.layers.trees)))
        options = f"lowerdir={below},upperdir=area/upper,workdir=area/work,userxattr"
        # With a user namespace of its own, set-uid programs can only become users of that namespace.
        flags = MS_NODEV if has_users else MS_NOSUID | MS_NODEV
        syscalls.mount("overlay", _ROOT, "overlay", flags, options)

    def _mount_dev(self) -> None:
        """Mount /dev over the write area. Snapshots read the area there; actions cannot unmount /dev."""
        written = os.open(_WRITE_AREA, os.O_PATH | os.O_CLOEXEC)
        syscalls.bind_mount(written, f"{_ROOT}/dev")
        os.close(written)
        syscalls.mount("tmpfs", f"{_ROOT}/dev", "tmpfs", MS_NOSUID, "size=64k,nr_inodes=64,mode=0755")
        mounts.populate_dev(_ROOT, self.devices)
        shared_memory = f"{_ROOT}{mounts.WRITABLE_PATHS['shm']}"
        os.mkdir(shared_memory)
        area = os.open(f"{_WRITE_AREA}/shm", os.O_PATH | os.O_CLOEXEC)
        syscalls.bind_mount(area, shared_memory)
        os.close(area)
        syscalls.make_readonly(f"{_ROOT}/dev", recursive=False)


def expose_upper_directory() -> str:
    """Return the directory of changes to the layers, in a private copy of the mount namespace.

    Call it in the environment's mount namespace with its capabilities.
    """
    syscalls.unshare(_NEW_MOUNTS)
    syscalls.unmount("/dev")
    return "/dev/upper"


def _make_directories(setup: AgentSetup) -> None:
    """Create the directories of actions. Those that the image lacks belong to the default user."""
    missing = [path for path in (WORKSPACE, setup.workspace) if not os.path.isdir(path)]
    for path in missing:
        os.makedirs(path, exist_ok=True)
        if setup.user is not None:
            with suppress(ValueError):  # each action reports that the user does not exist
                owner = users.find_user(setup.user)
                os.chown(path, owner.uid, owner.gid)


def _make_mount_point(name: str) -> None:
    """Ensure that a mount point is a directory and not a link."""
    path = f"{_ROOT}/{name}"
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            return
        os.unlink(path)
    except FileNotFoundError:
        pass
    os.mkdir(path)
    if name == "tmp":
        os.chmod(path, 0o1777)  # noqa: S103 - all users of the environment write there
