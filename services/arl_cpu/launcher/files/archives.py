"""File trees as tar archives, packed and unpacked as streams with one block in memory."""

import errno
import gzip
import io
import os
import shutil
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

from arl_cpu.launcher.files.file_tree import FileAccessError, FileTree, TreeEntry, printable_name, relative_path
from arl_cpu.launcher.files.tar_headers import BoundedTarInfo
from arl_cpu.launcher.files.workspace import mode_of
from arl_cpu.launcher.linux.syscalls import open_beneath

__all__ = ["DISK_FULL", "MAX_MEMBERS", "ArchiveSize", "measure", "pack", "unpack"]

MAX_MEMBERS = 65_536
"""Largest number of files that an environment can contain."""
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_BLOCK = 256 << 10
_HEADER_BYTES = 2 * tarfile.BLOCKSIZE
_MAX_MTIME_S = 1 << 33
_UNFINISHED = ".tangram-unfinished"
_GZIP = b"\x1f\x8b"
_LAYER_MARK, _REMOVED, _OPAQUE = "TANGRAM.layer", "removed", "opaque"
_TEMPLATE = "TANGRAM.template"
_MOUNT_POINTS = ("dev", "proc", "sys")
"""Mount points in an environment."""
_OVERLAY_OPAQUE = "user.overlay.opaque"
_DAMAGED = (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, ValueError, OverflowError, RecursionError)
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


def measure(tree: FileTree, *, max_bytes: int) -> ArchiveSize:
    """Return the size before anything is sent. Raises FileAccessError if it is too large or a file is unreadable."""
    size = ArchiveSize()
    seen: dict[tuple[int, int], str] = {}
    for entry in tree.entries():
        if entry.kind == "other" and not _is_whiteout(entry):
            size.left_out += 1
            continue
        size.members += 1
        member = _tar_member(entry, seen)
        size.names += len(os.fsencode(entry.path)) + len(os.fsencode(member.linkname))
        if entry.kind == "file" and member.isreg():
            size.bytes += entry.state.st_size
            if not os.access(entry.name, os.R_OK, dir_fd=entry.directory):
                raise FileAccessError("conflict", f"{printable_name(entry.path)!r} cannot be read: its mode forbids it")
        if size.members > MAX_MEMBERS:
            raise FileAccessError(
                "too_large", f"the archive would have more than {MAX_MEMBERS} files; request a part of them"
            )
        if size.bytes > max_bytes:
            raise FileAccessError(
                "too_large",
                f"the archive would have more than {max_bytes} bytes, including holes of files; request a part of it",
            )
    return size


def pack(tree: FileTree, target: BinaryIO, *, template: str | None = None) -> None:
    """Pack files, directories and links, including hard links. Pipes, sockets and devices are omitted.

    For files above the layers of a template, also pack the marks of removed files.
    """
    seen: dict[tuple[int, int], str] = {}
    about = {_TEMPLATE: template} if template is not None else None
    with tarfile.open(
        fileobj=target, mode="w|", format=tarfile.PAX_FORMAT, bufsize=_BLOCK, pax_headers=about
    ) as archive:
        try:
            for entry in tree.entries():
                archive.members = []  # type: ignore[attr-defined] # otherwise tarfile keeps every member
                if entry.kind != "other" or _is_whiteout(entry):
                    _add_member(archive, entry, _tar_member(entry, seen))
        except BaseException:
            # Closing would send the rest of an incomplete archive.
            archive.fileobj.buf = b""  # type: ignore[attr-defined]
            raise


def unpack(
    stream: io.RawIOBase, root: int, path: str, *, max_bytes: int, restores: bool = False, template: str | None = None
) -> ArchiveSize:
    """Unpack to the directory `path`, which is created if necessary. Each file is replaced completely or not at all.

    Raises FileAccessError with the member's name if a member leads out, is too large, or is not a file, directory or
    link. Earlier members stay. With `restores`, a snapshot of this `template` also replaces entries of another kind and
    removes marked files. Other archives remove nothing.
    """
    top = relative_path(path)
    taking = _SnapshotExtractor(root, top, max_bytes, template) if restores else _ArchiveExtractor(root, top, max_bytes)
    bounded = _BoundedReader(_decompress(stream), max_bytes + MAX_MEMBERS * _HEADER_BYTES)
    try:
        if top:
            os.close(taking.open_directory(""))
        members = BoundedTarInfo.for_one_archive()
        source = io.BufferedReader(bounded, _BLOCK)
        with tarfile.open(fileobj=source, mode="r|", bufsize=_BLOCK, tarinfo=members) as archive:
            for member in archive:
                archive.members = []  # type: ignore[attr-defined] # as above
                taking.extract(member, archive)
        while bounded.read(_BLOCK):
            pass  # bytes after the end of the archive
    except _DAMAGED as error:
        raise FileAccessError("invalid", f"the body is not a complete tar archive, plain or gzip: {error}") from None
    taking.finish()
    return taking.size


def _tar_member(entry: TreeEntry, seen: dict[tuple[int, int], str]) -> tarfile.TarInfo:
    state = entry.state
    member = tarfile.TarInfo(entry.path)
    member.mode, member.mtime = stat.S_IMODE(state.st_mode) & 0o777, max(0, int(state.st_mtime))
    if entry.kind == "directory":
        member.type, member.mode = tarfile.DIRTYPE, stat.S_IMODE(state.st_mode) & 0o1777
        if _is_opaque(entry):
            member.pax_headers = {_LAYER_MARK: _OPAQUE}
    elif entry.kind == "other":
        member.pax_headers = {_LAYER_MARK: _REMOVED}
    elif entry.kind == "symlink":
        member.type, member.linkname = tarfile.SYMTYPE, entry.link_target()
    elif state.st_nlink > 1:
        first = seen.setdefault((state.st_dev, state.st_ino), entry.path)
        if first != entry.path:
            member.type, member.linkname = tarfile.LNKTYPE, first
    return member


def _add_member(archive: tarfile.TarFile, entry: TreeEntry, member: tarfile.TarInfo) -> None:
    if member.isreg() and entry.kind == "file":
        with open(entry.open(), "rb") as file:
            member.size = os.fstat(file.fileno()).st_size
            archive.addfile(member, file)
    else:
        archive.addfile(member)


def _is_whiteout(entry: TreeEntry) -> bool:
    return stat.S_ISCHR(entry.state.st_mode) and entry.state.st_rdev == 0


def _is_opaque(entry: TreeEntry) -> bool:
    try:
        directory = os.open(entry.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=entry.directory)
    except OSError:
        return False
    try:
        return os.getxattr(directory, _OVERLAY_OPAQUE) == b"y"
    except OSError:
        return False
    finally:
        os.close(directory)


class _ArchiveExtractor:
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
                    _replace(directory, name, partial(_symlink, member, directory))
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
            os.fchmod(made, member.mode & 0o1777 | 0o700)
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
                while block := source.read(_BLOCK):
                    _write_all(file.fileno(), block)
                # Drop set-uid, set-gid and sticky bits.
                os.fchmod(file.fileno(), member.mode & 0o777)
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


class _SnapshotExtractor(_ArchiveExtractor):
    def __init__(self, root: int, top: str, max_bytes: int, template: str | None) -> None:
        super().__init__(root, top, max_bytes)
        self._template = template

    def extract(self, member: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
        """Extract a member of a snapshot: a file, a directory, a link, or a mark of removed files."""
        if archive.pax_headers.get(_TEMPLATE) != self._template:
            raise FileAccessError("conflict", "the template was imported again after the snapshot was taken")
        mark, path = member.pax_headers.get(_LAYER_MARK), relative_path(member.name)
        if path.split("/")[0] in _MOUNT_POINTS:
            return
        parent, _, name = path.rpartition("/")
        if path and (mark is not None or not member.isdir() or self._is_other_than_directory(parent, name)):
            with _member_errors(member.name), self._opened_directory(parent) as directory:
                self._clear(directory, name, contents_only=mark == _OPAQUE, is_file=mark is None)
        if mark != _REMOVED:
            super().extract(member, archive)

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


def _symlink(member: tarfile.TarInfo, directory: int, name: str) -> None:
    os.symlink(member.linkname, name, dir_fd=directory)
    os.utime(name, (_time(member), _time(member)), dir_fd=directory, follow_symlinks=False)


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


def _decompress(stream: io.RawIOBase) -> Any:
    buffered = io.BufferedReader(stream, _BLOCK)
    return gzip.GzipFile(fileobj=buffered) if buffered.peek(2)[:2] == _GZIP else buffered


class _BoundedReader(io.RawIOBase):
    """A reader with a limit: a small archive may decompress to a large one."""

    def __init__(self, inner: Any, max_bytes: int) -> None:
        self._inner, self._remaining = inner, max_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        data = self._inner.read(len(target))
        self._remaining -= len(data)
        if self._remaining < 0:
            raise FileAccessError("too_large", "the archive unpacks to more data than the environment can store")
        target[: len(data)] = data
        return len(data)


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
