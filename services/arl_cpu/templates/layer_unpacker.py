"""Unpacking of a layer's archive into a directory that overlayfs can stack.

No archive can escape the directory. The kernel resolves every path with the directory as root and never follows a last
component. Only files that this module has just created are opened. Devices are dropped. If the layer keeps no owners,
no file belongs to root and set-uid bits are dropped. Otherwise only environments, which have ids of their own, show the
files under these owners.
"""

import errno
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from arl_cpu.launcher.files.tar_headers import BoundedTarInfo
from arl_cpu.launcher.isolation.users import MAX_ID
from arl_cpu.launcher.linux import syscalls
from arl_cpu.templates.byte_streams import ImportBudget
from arl_cpu.templates.layer_entries import LayerEntry, parse_member_name, relative_path
from arl_cpu.templates.template import TemplateError
from arl_cpu.templates.template_store import keeps_owners, layer_owner

__all__ = ["OPAQUE", "LayerUnpacker", "read_archive"]

OPAQUE = "user.overlay.opaque"

_DIRECTORY = os.O_PATH | os.O_DIRECTORY
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK = 1 << 20
_MAX_MTIME_S = 1 << 33
_NO_PATH = "\0"


def read_archive(stream: BinaryIO, target: Path, budget: ImportBudget) -> int:
    """Unpack to `target`, an empty directory. Return the number of devices and pipes that were omitted."""
    unpacker = LayerUnpacker(target, budget)
    try:
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=BoundedTarInfo.for_one_archive()) as archive:
            for member in archive:
                archive.members = []  # type: ignore[attr-defined] # otherwise tarfile keeps every member
                unpacker.unpack_member(member, archive)
        unpacker.finish()
    finally:
        unpacker.close()
    return unpacker.left_out


class LayerUnpacker:
    """An unpacker of archive members to a directory of one layer."""

    def __init__(self, target: Path, budget: ImportBudget) -> None:
        self.left_out = 0
        self._budget, self._owner, self._keeps_owners = budget, layer_owner(), keeps_owners()
        self._root = os.open(target, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._last_directory: tuple[str, int] | None = None
        """The last directory used. Its path may resolve differently after a removal."""
        self._times: dict[str, float] = {}
        self._set_owner(self._root, "")

    def close(self) -> None:
        """Close the opened directories."""
        self._close_last_directory()
        os.close(self._root)

    def unpack_member(self, member: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
        """Create the member's entry. A later member of the same name replaces it."""
        self._budget.spend_member()
        if member.size < 0:
            raise TemplateError(f"{member.name!r} has a negative size")
        place = parse_member_name(member.name)
        if place is None:
            return
        with _member_errors(member.name):
            parent = self._open_directory(place.parent)
            if place.kind == "opaque":
                self._make_opaque(parent)
            elif place.kind == "whiteout":
                self._make_whiteout(parent, place.name)
            else:
                self._make_entry(member, archive, parent, place)

    def finish(self) -> None:
        """Set the times of directories last, because creating their entries changes them."""
        for path, mtime in self._times.items():
            try:
                directory = syscalls.open_in_root(self._root, path, os.O_RDONLY | os.O_DIRECTORY)
            except OSError:
                continue  # replaced by a later member
            os.utime(directory, (mtime, mtime))
            os.close(directory)

    def _make_entry(self, member: tarfile.TarInfo, archive: tarfile.TarFile, parent: int, entry: LayerEntry) -> None:
        if member.isdir():
            self._make_directory(member, parent, entry)
        elif member.isfile():
            self._remove(parent, entry.name)
            self._write_file(member, archive, parent, entry.name)
        elif member.issym():
            self._remove(parent, entry.name)
            os.symlink(member.linkname, entry.name, dir_fd=parent)
            self._set_owner(parent, entry.name, member)
        elif member.islnk():
            self._make_hard_link(member.linkname, parent, entry.name)
        else:
            self.left_out += 1

    def _make_directory(self, member: tarfile.TarInfo, parent: int, entry: LayerEntry) -> None:
        found = _kind_of(parent, entry.name)
        if found is not None and not stat.S_ISDIR(found):
            self._remove(parent, entry.name)
        if found is None or not stat.S_ISDIR(found):
            os.mkdir(entry.name, 0o700, dir_fd=parent)
        self._set_owner(parent, entry.name, member)
        made = os.open(entry.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        os.fchmod(made, self._mode_of(member, 0o700))
        if found is not None and stat.S_ISCHR(found):
            os.setxattr(made, OPAQUE, b"y")  # a whiteout came first, so the directory hides the lower one
        os.close(made)
        self._times[f"{entry.parent}/{entry.name}"] = _member_mtime(member)

    def _write_file(self, member: tarfile.TarInfo, archive: tarfile.TarFile, parent: int, name: str) -> None:
        source = archive.extractfile(member)
        if source is None:
            raise TemplateError(f"{member.name!r} has no content")
        if member.issparse():
            self._budget.spend_bytes(member.size)  # the archive does not contain the holes
        with os.fdopen(os.open(name, _NEW_FILE, 0o600, dir_fd=parent), "wb") as file:
            shutil.copyfileobj(source, file, _BLOCK)
            file.flush()
            self._set_owner(file.fileno(), "", member)
            os.fchmod(file.fileno(), self._mode_of(member, 0o600))
            os.utime(file.fileno(), (_member_mtime(member), _member_mtime(member)))

    def _mode_of(self, member: tarfile.TarInfo, least: int) -> int:
        """Return the mode of a file or directory.

        The only user of an environment may always read and write its files, as root of a container can.
        """
        if self._keeps_owners:
            return member.mode & 0o7777
        return member.mode & (0o1777 if member.isdir() else 0o777) | least

    def _set_owner(self, directory: int, name: str, member: tarfile.TarInfo | None = None) -> None:
        if not self._keeps_owners:
            _set_owner(directory, name, self._owner, self._owner)
            return
        uid, gid = (member.uid, member.gid) if member is not None else (0, 0)
        # Larger ids do not exist in an environment.
        _set_owner(directory, name, *(each if 0 <= each <= MAX_ID else MAX_ID for each in (uid, gid)))

    def _make_hard_link(self, target: str, parent: int, name: str) -> None:
        """Create a hard link. Its target must be a file of this layer."""
        path, _, last = relative_path(target).rpartition("/")
        try:
            directory = syscalls.open_in_root(self._root, path or ".", _DIRECTORY)
        except OSError:
            raise TemplateError(f"the member is a hard link to {target!r}, which is not in its layer") from None
        try:
            if not stat.S_ISREG(_kind_of(directory, last) or 0):
                raise TemplateError(f"the member is a hard link to {target!r}, which is not a file of its layer")
            if os.path.samestat(os.fstat(directory), os.fstat(parent)) and last == name:
                return
            self._remove(parent, name)
            os.link(last, name, src_dir_fd=directory, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(directory)

    def _make_whiteout(self, parent: int, name: str) -> None:
        """Hide a name of lower layers. The layer's own entry of that name stays."""
        found = _kind_of(parent, name)
        if found is None:
            os.mknod(name, stat.S_IFCHR, 0, dir_fd=parent)
        elif stat.S_ISDIR(found):
            directory = os.open(name, _DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
            self._make_opaque(directory)
            os.close(directory)

    def _make_opaque(self, directory: int) -> None:
        os.setxattr(f"/proc/self/fd/{directory}", OPAQUE, b"y")

    def _remove(self, parent: int, name: str) -> None:
        found = _kind_of(parent, name)
        if found is None:
            return
        if stat.S_ISDIR(found):
            shutil.rmtree(name, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)
        if self._last_directory is not None:
            self._last_directory = _NO_PATH, self._last_directory[1]

    def _open_directory(self, path: str) -> int:
        if self._last_directory is not None and self._last_directory[0] == path:
            return self._last_directory[1]
        self._close_last_directory()
        try:
            opened = syscalls.open_in_root(self._root, path or ".", _DIRECTORY)
        except FileNotFoundError:
            opened = self._make_parents(path)
        self._last_directory = path, opened
        return opened

    def _make_parents(self, path: str) -> int:
        """Create directories that the archive uses but does not contain."""
        directory = os.dup(self._root)
        parts = path.split("/")
        for depth, name in enumerate(parts, start=1):
            above = "/".join(parts[:depth])
            try:
                below = syscalls.open_in_root(self._root, above, _DIRECTORY)
            except FileNotFoundError:
                self._budget.spend_member()
                os.mkdir(name, 0o755, dir_fd=directory)
                self._set_owner(directory, name)
                below = syscalls.open_in_root(self._root, above, _DIRECTORY)
            os.close(directory)
            directory = below
        return directory

    def _close_last_directory(self) -> None:
        if self._last_directory is not None:
            os.close(self._last_directory[1])
            self._last_directory = None


def _set_owner(directory: int, name: str, owner: int | None, group: int | None) -> None:
    if owner is None or group is None:
        return
    try:
        if name:
            os.chown(name, owner, group, dir_fd=directory, follow_symlinks=False)
        else:
            os.chown(f"/proc/self/fd/{directory}", owner, group)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EPERM):  # root of a container that lacks this uid
            raise


def _kind_of(directory: int, name: str) -> int | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None


def _member_mtime(member: tarfile.TarInfo) -> float:
    return min(max(0.0, float(member.mtime)), _MAX_MTIME_S)


@contextmanager
def _member_errors(member: str) -> Iterator[None]:
    """Add the member's name to every error."""
    try:
        yield
    except TemplateError as error:
        raise TemplateError(f"{member!r}: {error}") from None
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise TemplateError(f"{member!r} is blocked by another entry: {error.strerror}") from None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EXDEV, errno.ENAMETOOLONG, errno.EINVAL):
            raise
        raise TemplateError(f"{member!r} cannot be created: {error.strerror}") from None
