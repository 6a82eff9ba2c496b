"""Unpacking of a layer's archive into a directory that overlayfs can stack.

No archive can escape the directory. The kernel resolves every path with the directory as root and never follows a last
component. Only files that this module has just created are opened. No file belongs to root; set-uid bits and devices
are dropped.
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
from arl_cpu.launcher.linux import syscalls
from arl_cpu.templates.byte_streams import ImportBudget
from arl_cpu.templates.layer_entries import LayerEntry, parse_member_name, relative_path
from arl_cpu.templates.template import TemplateError
from arl_cpu.templates.template_store import layer_owner

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
        self._budget, self._owner = budget, layer_owner()
        self._root = os.open(target, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._last_directory: tuple[str, int] | None = None
        """The last directory used. Its path may resolve differently after a removal."""
        self._times: dict[str, float] = {}
        _set_owner(self._root, "", self._owner)

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
            _set_owner(parent, entry.name, self._owner)
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
            _set_owner(parent, entry.name, self._owner)
        made = os.open(entry.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        # Its owner may always write, as root in a container can.
        os.fchmod(made, member.mode & 0o1777 | 0o700)
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
            _set_owner(file.fileno(), "", self._owner)
            os.fchmod(file.fileno(), member.mode & 0o777 | 0o600)
            os.utime(file.fileno(), (_member_mtime(member), _member_mtime(member)))

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
                _set_owner(directory, name, self._owner)
                below = syscalls.open_in_root(self._root, above, _DIRECTORY)
            os.close(directory)
            directory = below
        return directory

    def _close_last_directory(self) -> None:
        if self._last_directory is not None:
            os.close(self._last_directory[1])
            self._last_directory = None


def _set_owner(directory: int, name: str, owner: int | None) -> None:
    if owner is None:
        return
    try:
        if name:
            os.chown(name, owner, owner, dir_fd=directory, follow_symlinks=False)
        else:
            os.chown(f"/proc/self/fd/{directory}", owner, owner)
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
