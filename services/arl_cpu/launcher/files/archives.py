"""File trees as tar archives, packed and unpacked as streams with one block in memory."""

import gzip
import io
import os
import stat
import tarfile
import zlib
from typing import Any, BinaryIO

from arl_cpu.launcher.files.archive_extraction import (
    BLOCK,
    DISK_FULL,
    LAYER_MARK,
    MAX_MEMBERS,
    OPAQUE,
    OWNERS,
    REMOVED,
    TEMPLATE,
    ArchiveExtractor,
    ArchiveSize,
    SnapshotExtractor,
)
from arl_cpu.launcher.files.file_tree import FileAccessError, FileTree, TreeEntry, printable_name, relative_path
from arl_cpu.launcher.files.tar_headers import BoundedTarInfo

__all__ = ["DISK_FULL", "MAX_MEMBERS", "ArchiveSize", "measure", "pack", "unpack"]

_HEADER_BYTES = 2 * tarfile.BLOCKSIZE
_GZIP = b"\x1f\x8b"
_OVERLAY_OPAQUE = "user.overlay.opaque"
_DAMAGED = (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, ValueError, OverflowError, RecursionError)


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


def pack(tree: FileTree, target: BinaryIO, *, template: str | None = None, has_owners: bool = False) -> None:
    """Pack files, directories and links, including hard links. Pipes, sockets and devices are omitted.

    For files above the layers of a template, also pack the marks of removed files. With `has_owners`, also pack the
    owners and the set-uid bits.
    """
    seen: dict[tuple[int, int], str] = {}
    about = {TEMPLATE: template} if template is not None else {}
    about |= {OWNERS: "1"} if has_owners else {}
    with tarfile.open(
        fileobj=target, mode="w|", format=tarfile.PAX_FORMAT, bufsize=BLOCK, pax_headers=about or None
    ) as archive:
        try:
            for entry in tree.entries():
                archive.members = []  # type: ignore[attr-defined] # otherwise tarfile keeps every member
                if entry.kind != "other" or _is_whiteout(entry):
                    member = _tar_member(entry, seen)
                    if has_owners:
                        member.uid, member.gid = entry.state.st_uid, entry.state.st_gid
                        member.mode = stat.S_IMODE(entry.state.st_mode)
                    _add_member(archive, entry, member)
        except BaseException:
            # Closing would send the rest of an incomplete archive.
            archive.fileobj.buf = b""  # type: ignore[attr-defined]
            raise


def unpack(
    stream: io.RawIOBase,
    root: int,
    path: str,
    *,
    max_bytes: int,
    restores: bool = False,
    template: str | None = None,
    owner: tuple[int, int] | None = None,
) -> ArchiveSize:
    """Unpack to the directory `path`, which is created if necessary. Each file is replaced completely or not at all.

    Raises FileAccessError with the member's name if a member leads out, is too large, or is not a file, directory or
    link. Earlier members stay. With `restores`, a snapshot of this `template` also replaces entries of another kind and
    removes marked files. Other archives remove nothing. `owner` is the default uid and gid of a snapshot's files, for
    root of an environment with users.
    """
    top = relative_path(path)
    if restores:
        taking: ArchiveExtractor = SnapshotExtractor(root, top, max_bytes, template, owner)
    else:
        taking = ArchiveExtractor(root, top, max_bytes)
    bounded = _BoundedReader(_decompress(stream), max_bytes + MAX_MEMBERS * _HEADER_BYTES)
    try:
        if top:
            os.close(taking.open_directory(""))
        members = BoundedTarInfo.for_one_archive()
        source = io.BufferedReader(bounded, BLOCK)
        with tarfile.open(fileobj=source, mode="r|", bufsize=BLOCK, tarinfo=members) as archive:
            for member in archive:
                archive.members = []  # type: ignore[attr-defined] # as above
                taking.extract(member, archive)
        while bounded.read(BLOCK):
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
            member.pax_headers = {LAYER_MARK: OPAQUE}
    elif entry.kind == "other":
        member.pax_headers = {LAYER_MARK: REMOVED}
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


def _decompress(stream: io.RawIOBase) -> Any:
    buffered = io.BufferedReader(stream, BLOCK)
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
