"""One layer's archive as a directory of the kind that overlayfs stacks.

Nothing an archive holds leads out of the directory: the kernel resolves every path with it as the root, a last
component is never followed, and nothing is opened that this module has not just made. No file belongs to root, no
set-uid bit and no device comes through.
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

from arl_cpu.launcher import syscalls

from .members import Place, place_of, relative
from .refused import Refused
from .store import owner_here
from .streams import Budget

__all__ = ["OPAQUE", "Unpacker", "read_archive"]

OPAQUE = "user.overlay.opaque"

_DIRECTORY = os.O_PATH | os.O_DIRECTORY
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK = 1 << 20
_LATEST_S = 1 << 33
_NO_PATH = "\0"


def read_archive(stream: BinaryIO, target: Path, budget: Budget) -> int:
    """Unpack to the directory `target`, which must be empty. Returns how many devices and pipes were left out."""
    unpacker = Unpacker(target, budget)
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                archive.members = []  # type: ignore[attr-defined] # it would remember them all
                unpacker.take(member, archive)
        unpacker.finish()
    finally:
        unpacker.close()
    return unpacker.left_out


class Unpacker:
    def __init__(self, target: Path, budget: Budget) -> None:
        self.left_out = 0
        self._budget, self._owner = budget, owner_here()
        self._root = os.open(target, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._last: tuple[str, int] | None = None
        """The directory that was used last; its path may lead elsewhere once something was removed."""
        self._times: dict[str, float] = {}
        _own(self._root, "", self._owner)

    def close(self) -> None:
        self._forget()
        os.close(self._root)

    def take(self, member: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
        """Make what this member is. A later member of the same name replaces it."""
        self._budget.take_member()
        if member.size < 0:
            raise Refused(f"{member.name!r} has a size below 0")
        place = place_of(member.name)
        if place is None:
            return
        with _named(member.name):
            parent = self._directory(place.parent)
            if place.what == "opaque":
                self._make_opaque(parent)
            elif place.what == "whiteout":
                self._hide(parent, place.name)
            else:
                self._make(member, archive, parent, place)

    def finish(self) -> None:
        """Directories get their times last: making what is in them changed those."""
        for path, mtime in self._times.items():
            try:
                directory = syscalls.open_in_root(self._root, path, os.O_RDONLY | os.O_DIRECTORY)
            except OSError:
                continue  # replaced since
            os.utime(directory, (mtime, mtime))
            os.close(directory)

    def _make(self, member: tarfile.TarInfo, archive: tarfile.TarFile, parent: int, place: Place) -> None:
        if member.isdir():
            self._make_directory(member, parent, place)
        elif member.isfile():
            self._remove(parent, place.name)
            self._write(member, archive, parent, place.name)
        elif member.issym():
            self._remove(parent, place.name)
            os.symlink(member.linkname, place.name, dir_fd=parent)
            _own(parent, place.name, self._owner)
        elif member.islnk():
            self._link(member.linkname, parent, place.name)
        else:
            self.left_out += 1

    def _make_directory(self, member: tarfile.TarInfo, parent: int, place: Place) -> None:
        found = _kind_of(parent, place.name)
        if found is not None and not stat.S_ISDIR(found):
            self._remove(parent, place.name)
        if found is None or not stat.S_ISDIR(found):
            os.mkdir(place.name, 0o700, dir_fd=parent)
            _own(parent, place.name, self._owner)
        made = os.open(place.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        # Its owner may always write, as root of a container could.
        os.fchmod(made, member.mode & 0o1777 | 0o700)
        if found is not None and stat.S_ISCHR(found):
            os.setxattr(made, OPAQUE, b"y")  # it was hidden before: what lies below is not it
        os.close(made)
        self._times[f"{place.parent}/{place.name}"] = _time(member)

    def _write(self, member: tarfile.TarInfo, archive: tarfile.TarFile, parent: int, name: str) -> None:
        source = archive.extractfile(member)
        if source is None:
            raise Refused(f"{member.name!r} has no content")
        if member.issparse():
            self._budget.take_bytes(member.size)  # its holes are not in the archive
        with os.fdopen(os.open(name, _NEW_FILE, 0o600, dir_fd=parent), "wb") as file:
            shutil.copyfileobj(source, file, _BLOCK)
            file.flush()
            _own(file.fileno(), "", self._owner)
            os.fchmod(file.fileno(), member.mode & 0o777 | 0o600)
            os.utime(file.fileno(), (_time(member), _time(member)))

    def _link(self, target: str, parent: int, name: str) -> None:
        """Only to a file that this layer has brought."""
        path, _, last = relative(target).rpartition("/")
        try:
            directory = syscalls.open_in_root(self._root, path or ".", _DIRECTORY)
        except OSError:
            raise Refused(f"it is a hard link to {target!r}, which is not in its layer") from None
        try:
            if not stat.S_ISREG(_kind_of(directory, last) or 0):
                raise Refused(f"it is a hard link to {target!r}, which is no file of its layer")
            if os.path.samestat(os.fstat(directory), os.fstat(parent)) and last == name:
                return
            self._remove(parent, name)
            os.link(last, name, src_dir_fd=directory, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(directory)

    def _hide(self, parent: int, name: str) -> None:
        """What the layer itself has of that name stays: it is meant for the layers below."""
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
        if self._last is not None:
            self._last = _NO_PATH, self._last[1]

    def _directory(self, path: str) -> int:
        if self._last is not None and self._last[0] == path:
            return self._last[1]
        self._forget()
        try:
            opened = syscalls.open_in_root(self._root, path or ".", _DIRECTORY)
        except FileNotFoundError:
            opened = self._make_parents(path)
        self._last = path, opened
        return opened

    def _make_parents(self, path: str) -> int:
        """Directories that the archive uses without bringing them."""
        directory = os.dup(self._root)
        parts = path.split("/")
        for depth, name in enumerate(parts, start=1):
            above = "/".join(parts[:depth])
            try:
                below = syscalls.open_in_root(self._root, above, _DIRECTORY)
            except FileNotFoundError:
                self._budget.take_member()
                os.mkdir(name, 0o755, dir_fd=directory)
                _own(directory, name, self._owner)
                below = syscalls.open_in_root(self._root, above, _DIRECTORY)
            os.close(directory)
            directory = below
        return directory

    def _forget(self) -> None:
        if self._last is not None:
            os.close(self._last[1])
            self._last = None


def _own(directory: int, name: str, owner: int | None) -> None:
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


def _time(member: tarfile.TarInfo) -> float:
    return min(max(0.0, float(member.mtime)), _LATEST_S)


@contextmanager
def _named(member: str) -> Iterator[None]:
    """Whatever is wrong is said with the member's name."""
    try:
        yield
    except Refused as error:
        raise Refused(f"{member!r}: {error}") from None
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise Refused(f"{member!r}: something else is in its way: {error.strerror}") from None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EXDEV, errno.ENAMETOOLONG, errno.EINVAL):
            raise
        raise Refused(f"{member!r} cannot be made: {error.strerror}") from None
