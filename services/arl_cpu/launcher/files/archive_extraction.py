"""Extraction of archive members to files below a directory. The caller is an environment's user, or its root."""

import errno
import os
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from arl_cpu.launcher.files.file_tree import FileAccessError, printable_name, relative_path
from arl_cpu.launcher.files.workspace import mode_of
from arl_cpu.launcher.isolation.users import MAX_ID
from arl_cpu.launcher.linux.syscalls import open_beneath

__all__ = [
    "BLOCK",
    "DISK_FULL",
    "LAYER_MARK",
    "MAX_MEMBERS",
    "OPAQUE",
    "OWNERS",
    "REMOVED",
    "TEMPLATE",
    "ArchiveExtractor",
    "ArchiveSize",
    "SnapshotExtractor",
]

MAX_MEMBERS = 65_536
"""Largest number of files that an environment can contain."""
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
BLOCK = 256 << 10
LAYER_MARK, REMOVED, OPAQUE = "TANGRAM.layer", "removed", "opaque"
TEMPLATE = "TANGRAM.template"
OWNERS = "TANGRAM.owners"
"""Header of a snapshot whose members have owners."""
MOUNT_POINTS = ("dev", "proc", "sys")
"""Mount points in an environment."""
_MAX_MTIME_S = 1 << 33
_UNFINISHED = ".tangram-unfinished"
_DIRECTORY = os.O_PATH | os.O_DIRECTORY


@dataclass(slots=True)
class ArchiveSize:
    """The size of an archive: its members and the bytes of its files."""

    members: int = 0
    bytes: int = 0
    left_out: int = 0
    """Pipes, sockets and devices, which are omitted."""
    names: int = 0
    """Bytes of the paths and of link targets."""


class ArchiveExtractor:
    """An extractor of archive members to files below a directory."""

    def __init__(self, root: int, top: str, max_bytes: int) -> None:
        self.size = ArchiveSize()
        self._root, self._base_path, self._max_bytes = root, top, max_bytes
        self._times: dict[str, float] = {}

    def extract(self, member: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
        """Extract a member. A later member of the same name replaces an earlier one."""
        self.size.members += 1
        if self.size.members > MAX_MEMBERS:
            raise FileAccessError("too_large", f"the archive has more than {MAX_MEMBERS} members")
        with _member_errors(member.name):
            path = relative_path(member.name)
            if member.isdir():
                self._make_directory(path, member)
                return
            if not path:
                raise FileAccessError("invalid", "the member is the directory itself, but has another type")
            parent, _, name = path.rpartition("/")
            with self._opened_directory(parent) as directory:
                if member.isreg():
                    self._write_file(member, archive, directory, name)
                elif member.issym():
                    _replace(directory, name, partial(self._symlink, member, directory))
                elif member.islnk():
                    self._make_hard_link(member.linkname, directory, name)
                else:
                    raise FileAccessError(
                        "invalid", "the member is a device or a pipe, which environments do not accept"
                    )

    def finish(self) -> None:
        """Set the times of directories last, because creating their entries changes them."""
        for path, mtime in self._times.items():
            with suppress(OSError):  # replaced by a later member
                directory = open_beneath(self._root, self._full_path(path), os.O_RDONLY | os.O_DIRECTORY)
                os.utime(directory, (mtime, mtime))
                os.close(directory)

    def open_directory(self, path: str) -> int:
        """Open a directory and create it with its parents if necessary.

        Raises OSError if another kind of entry exists.
        """
        try:
            return open_beneath(self._root, self._full_path(path), _DIRECTORY)
        except FileNotFoundError:
            pass
        at = ""
        for part in self._full_path(path).split("/"):
            above, at = at or ".", f"{at}/{part}" if at else part
            parent = open_beneath(self._root, above, _DIRECTORY)
            with suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=parent)
            os.close(parent)
        return open_beneath(self._root, at, _DIRECTORY)

    def set_owner_and_mode(self, file: int, member: tarfile.TarInfo, mask: int, least: int = 0) -> None:
        """Set the mode without set-uid, set-gid and, for files, sticky bits. This process's user is the owner."""
        os.fchmod(file, member.mode & mask | least)

    def set_link_owner(self, link: str, directory: int, member: tarfile.TarInfo) -> None:
        """Set the owner of a new symbolic link, if it is not this process's user."""

    def _symlink(self, member: tarfile.TarInfo, directory: int, name: str) -> None:
        os.symlink(member.linkname, name, dir_fd=directory)
        self.set_link_owner(name, directory, member)
        os.utime(name, (_time(member), _time(member)), dir_fd=directory, follow_symlinks=False)

    def _full_path(self, path: str) -> str:
        return f"{self._base_path}/{path}".strip("/") or "."

    @contextmanager
    def _opened_directory(self, path: str) -> Iterator[int]:
        directory = self.open_directory(path)
        try:
            yield directory
        finally:
            os.close(directory)

    def _make_directory(self, path: str, member: tarfile.TarInfo) -> None:
        if not path:
            return  # it exists, and the archive does not determine its mode
        os.close(self.open_directory(path))
        made = open_beneath(self._root, self._full_path(path), os.O_RDONLY | os.O_DIRECTORY)
        with suppress(PermissionError):  # a directory of the image keeps its mode
            self.set_owner_and_mode(made, member, 0o1777, 0o700)
        os.close(made)
        self._times[path] = _time(member)

    def _write_file(self, member: tarfile.TarInfo, archive: tarfile.TarFile, directory: int, name: str) -> None:
        self.size.bytes += max(0, member.size)
        if member.size < 0 or self.size.bytes > self._max_bytes:
            raise FileAccessError(
                "disk", f"the files have more than {self._max_bytes} bytes, the size of the environment's disk"
            )
        source = archive.extractfile(member)
        assert source is not None

        def write(new: str) -> None:
            """Write the content to a new file."""
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(new, flags, 0o600, dir_fd=directory), "wb", buffering=0) as file:
                while block := source.read(BLOCK):
                    _write_all(file.fileno(), block)
                self.set_owner_and_mode(file.fileno(), member, 0o777)
                os.utime(file.fileno(), (_time(member), _time(member)))

        _replace(directory, name, write)

    def _make_hard_link(self, target: str, directory: int, name: str) -> None:
        parent, _, last = relative_path(target).rpartition("/")
        try:
            there = open_beneath(self._root, self._full_path(parent), _DIRECTORY)
        except OSError:
            raise FileAccessError("invalid", f"the member is a hard link to {target!r}, which does not exist") from None
        try:
            if not stat.S_ISREG(mode_of(there, last) or 0):
                raise FileAccessError("invalid", f"the member is a hard link to {target!r}, which is not a file")
            if os.path.samestat(os.fstat(there), os.fstat(directory)) and last == name:
                return
            both = {"src_dir_fd": there, "dst_dir_fd": directory}
            _replace(directory, name, lambda new: os.link(last, new, **both, follow_symlinks=False))
        finally:
            os.close(there)


class SnapshotExtractor(ArchiveExtractor):
    """An extractor of a snapshot, which replaces everything that the snapshot has or marks as removed."""

    def __init__(
        self, root: int, top: str, max_bytes: int, template: str | None, owner: tuple[int, int] | None = None
    ) -> None:
        super().__init__(root, top, max_bytes)
        self._template, self._owner = template, owner
        self._has_owners = False

    def extract(self, member: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
        """Extract a member of a snapshot: a file, a directory, a link, or a mark of removed files."""
        if archive.pax_headers.get(TEMPLATE) != self._template:
            raise FileAccessError("conflict", "the template was imported again after the snapshot was taken")
        self._has_owners = self._owner is not None and OWNERS in archive.pax_headers
        mark, path = member.pax_headers.get(LAYER_MARK), relative_path(member.name)
        if path.split("/")[0] in MOUNT_POINTS:
            return
        parent, _, name = path.rpartition("/")
        if path and (mark is not None or not member.isdir() or self._is_other_than_directory(parent, name)):
            with _member_errors(member.name), self._opened_directory(parent) as directory:
                self._clear(directory, name, contents_only=mark == OPAQUE, is_file=mark is None)
        if mark != REMOVED:
            super().extract(member, archive)

    def set_owner_and_mode(self, file: int, member: tarfile.TarInfo, mask: int, least: int = 0) -> None:
        """Set the owner and the mode of the snapshot. Set-uid bits are kept only together with owners."""
        if self._owner is None:
            super().set_owner_and_mode(file, member, mask, least)
            return
        os.fchown(file, *self._owner_of(member))
        os.fchmod(file, member.mode & 0o7777 if self._has_owners else member.mode & mask | least)

    def set_link_owner(self, link: str, directory: int, member: tarfile.TarInfo) -> None:
        """Set the owner of the snapshot."""
        if self._owner is not None:
            os.chown(link, *self._owner_of(member), dir_fd=directory, follow_symlinks=False)

    def _owner_of(self, member: tarfile.TarInfo) -> tuple[int, int]:
        assert self._owner is not None
        if not self._has_owners:
            return self._owner
        return min(max(0, member.uid), MAX_ID), min(max(0, member.gid), MAX_ID)

    def _is_other_than_directory(self, parent: str, name: str) -> bool:
        with self._opened_directory(parent) as directory:
            found = mode_of(directory, name)
            return found is not None and not stat.S_ISDIR(found)

    def _clear(self, directory: int, name: str, *, contents_only: bool, is_file: bool) -> None:
        found = mode_of(directory, name)
        if found is None or (is_file and stat.S_ISREG(found)):
            return  # a file is replaced atomically
        if not stat.S_ISDIR(found):
            os.unlink(name, dir_fd=directory)
            return
        shutil.rmtree(name, dir_fd=directory)
        if contents_only:
            os.mkdir(name, 0o755, dir_fd=directory)


def _replace(directory: int, name: str, make: Callable[[str], None]) -> None:
    """Create an entry under a temporary name and rename it, so that one of the two always exists.

    A directory is never replaced.
    """
    with suppress(FileNotFoundError):
        os.unlink(_UNFINISHED, dir_fd=directory)  # any kind of file may have this name
    try:
        make(_UNFINISHED)
        os.rename(_UNFINISHED, name, src_dir_fd=directory, dst_dir_fd=directory)
    finally:
        with suppress(OSError):  # already renamed, or a link to the file it replaces, which rename leaves
            os.unlink(_UNFINISHED, dir_fd=directory)


def _write_all(file: int, block: bytes) -> None:
    view = memoryview(block)
    while view:
        view = view[os.write(file, view) :]


def _time(member: tarfile.TarInfo) -> float:
    return min(max(0.0, float(member.mtime)), _MAX_MTIME_S)


@contextmanager
def _member_errors(name: str) -> Iterator[None]:
    """Add the member's name to every error."""
    try:
        yield
    except FileAccessError as error:
        raise FileAccessError(error.code, f"member {printable_name(name)!r}: {error}") from None
    except OSError as error:
        if error.errno in DISK_FULL:
            raise FileAccessError(
                "disk", f"member {printable_name(name)!r} does not fit on the environment's disk"
            ) from None
        raise FileAccessError(
            "conflict", f"member {printable_name(name)!r} cannot be created: {error.strerror or error}"
        ) from None
