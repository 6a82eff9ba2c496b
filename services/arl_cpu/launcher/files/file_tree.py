"""Listing and reading of file trees below a directory whose owner is untrusted.

No operation follows a link out of the directory. The kernel resolves names below it, or one at a time from opened
directories. A concurrent replacement can only affect files that the owner may access anyway.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from arl_cpu.launcher.linux.syscalls import open_beneath

__all__ = ["FileAccessError", "FileTree", "TreeEntry", "list_entries", "printable_name"]

FileErrorCode = Literal["conflict", "disk", "invalid", "memory", "not_found", "time", "too_large", "unsupported"]

MAX_DEPTH = 500
"""Largest depth of directories: each is open while its entries are processed."""
MAX_CURSOR_BYTES = 4096
"""Largest length in bytes of a path from which a list can continue."""
MAX_TIMESTAMP_S = 253_402_300_799
"""Latest timestamp that has a date, in seconds; a file may claim a later one."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}


class FileAccessError(Exception):
    """A failed file operation. The message gives the reason; the code classifies it for the caller."""

    def __init__(self, code: FileErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """An entry of a tree. `directory` is the opened directory of `name`, valid during the iteration step."""

    path: str
    name: str
    directory: int
    state: os.stat_result

    @property
    def kind(self) -> str:
        """Return the kind of the entry: `file`, `directory`, `symlink` or `other`."""
        return _KINDS.get(stat.S_IFMT(self.state.st_mode), "other")

    def open(self) -> int:
        """Open the file for reading. Raises OSError if it is not a regular file any more."""
        file = os.open(self.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.directory)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(f"{self.path!r} is no longer a file")
        return file

    def link_target(self) -> str:
        """Return the target of a symbolic link."""
        return os.readlink(self.name, dir_fd=self.directory)


class FileTree:
    """The tree at a path below the root: a directory with its content, or `only` some of its entries, or one file.

    Raises FileAccessError if the path does not exist.
    """

    def __init__(self, root: int, path: str, *, only: Sequence[str] | None = None) -> None:
        self._only = only
        self._path = relative_path(path)
        parent, _, self._name = self._path.rpartition("/")
        try:
            self._parent = open_beneath(root, parent or ".", os.O_PATH | os.O_DIRECTORY)
            self._state = os.stat(self._name or ".", dir_fd=self._parent, follow_symlinks=False)
            if stat.S_ISLNK(self._state.st_mode):
                self._follow_link(root)
        except OSError as error:
            raise FileAccessError(
                "not_found", f"{path!r} does not exist or cannot be opened: {error.strerror}"
            ) from None

    @property
    def is_directory(self) -> bool:
        """Return True if the tree is a directory."""
        return stat.S_ISDIR(self._state.st_mode)

    def entries(self, *, recursive: bool = True) -> Iterator[TreeEntry]:
        """Yield entries, parents first, sorted by name, with paths relative to the tree.

        Vanished entries are skipped.
        """
        if not self.is_directory:
            yield TreeEntry(self._name, self._name, self._parent, self._state)
            return
        stack = [_DirectoryLevel("", *_open_directory(self._parent, self._name or ".", self._path or "."))]
        if self._only is not None:
            stack[0].names = [name for name in stack[0].names if name in self._only]
        try:
            while stack:
                level = stack[-1]
                if not level.names:
                    os.close(stack.pop().directory)
                    continue
                name = level.names.pop()
                try:
                    entry = TreeEntry(level.path + name, name, level.directory, _stat(level.directory, name))
                except FileNotFoundError:
                    continue
                yield entry
                if recursive and entry.kind == "directory":
                    if len(stack) == MAX_DEPTH:
                        raise FileAccessError("too_large", f"{entry.path!r} is more than {MAX_DEPTH} directories deep")
                    stack.append(_DirectoryLevel(f"{entry.path}/", *_open_directory(level.directory, name, entry.path)))
        finally:
            for level in stack:
                os.close(level.directory)

    def _follow_link(self, root: int) -> None:
        """Follow a link at the path itself if it leads to a directory below the root."""
        found = open_beneath(root, self._path, os.O_PATH)
        self._state = os.fstat(found)
        if self.is_directory:
            self._parent, self._name = found, ""
        else:
            raise OSError(0, "the link does not lead to a directory", self._path)


@dataclass(slots=True)
class _DirectoryLevel:
    path: str
    directory: int
    names: list[str]
    """Remaining names, the next one last."""


def relative_path(path: str) -> str:
    """Return the normalised path. Raises FileAccessError if it leads out."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in parts or "\0" in path:
        raise FileAccessError("invalid", f"{path!r} leads out of the working directory")
    return "/".join(parts)


def list_entries(tree: FileTree, *, recursive: bool, limit: int, after: str | None) -> dict[str, Any]:
    """Return at most `limit` entries after `after`, and a cursor if there are more."""
    behind = after.split("/") if after is not None else None
    found: list[dict[str, Any]] = []
    last = ""
    for entry in tree.entries(recursive=recursive):
        if behind is not None and entry.path.split("/") <= behind:
            continue
        if len(found) == limit:
            return {"entries": found, "next": _encode_cursor(last)}
        found.append(_describe_entry(entry))
        last = entry.path
    return {"entries": found, "next": None}


def _encode_cursor(last: str) -> str:
    if len(behind := os.fsencode(last)) > MAX_CURSOR_BYTES:
        message = f"a list cannot continue after a path of more than {MAX_CURSOR_BYTES} bytes; request a subdirectory"
        raise FileAccessError("too_large", message)
    return behind.hex()


def printable_name(name: str) -> str:
    """Return the name as printable text. Bytes that are not UTF-8 are escaped in hexadecimal."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _describe_entry(entry: TreeEntry) -> dict[str, Any]:
    state = entry.state
    described: dict[str, Any] = {
        "path": printable_name(entry.path),
        "type": entry.kind,
        "size": state.st_size if entry.kind == "file" else 0,
        "mode": stat.S_IMODE(state.st_mode),
        "modified_at": datetime.fromtimestamp(min(max(0.0, state.st_mtime), MAX_TIMESTAMP_S), UTC).isoformat(),
    }
    if entry.kind == "symlink":
        described["target"] = printable_name(entry.link_target())
    return described


def _open_directory(directory: int, name: str, path: str) -> tuple[int, list[str]]:
    try:
        opened = os.open(name, _DIRECTORY, dir_fd=directory)
    except FileNotFoundError:
        opened = os.open("/", os.O_PATH | os.O_CLOEXEC)  # it vanished; an empty list ends its level
        return opened, []
    except OSError as error:
        raise FileAccessError("conflict", f"{printable_name(path)!r} cannot be read: {error.strerror}") from None
    try:
        return opened, sorted(os.listdir(opened), reverse=True)
    except OSError as error:
        os.close(opened)
        raise FileAccessError("conflict", f"{printable_name(path)!r} cannot be read: {error.strerror}") from None


def _stat(directory: int, name: str) -> os.stat_result:
    return os.stat(name, dir_fd=directory, follow_symlinks=False)
