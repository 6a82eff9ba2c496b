"""Operations on files of a sandbox. Each takes the arguments of a request and returns its result."""

from __future__ import annotations

import base64
import errno
import grp
import os
import pwd
import shutil
import stat
from datetime import UTC, datetime
from typing import Any

__all__ = ["OPERATIONS", "GuestError", "resolve_path"]

TYPES = {stat.S_IFREG: "FILE_TYPE_FILE", stat.S_IFDIR: "FILE_TYPE_DIRECTORY"}
MAX_ENTRIES = 20_000
"""Entries of one listing. The response must fit into the output of an action."""
METADATA: dict[tuple[int, int], dict[str, str]] = {}
"""Metadata of files, by device and inode."""
CODES = {
    errno.ENOENT: "not_found",
    errno.ENOTDIR: "invalid_argument",
    errno.EISDIR: "invalid_argument",
    errno.EEXIST: "already_exists",
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.EROFS: "permission_denied",
    errno.ENOSPC: "resource_exhausted",
    errno.EDQUOT: "resource_exhausted",
    errno.ENAMETOOLONG: "invalid_argument",
    errno.ELOOP: "invalid_argument",
}


class GuestError(Exception):
    """An error for the client, with a code of the Connect protocol."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    @classmethod
    def of_os_error(cls, error: OSError) -> GuestError:
        """Return the error for a failed system call."""
        name = error.filename2 or error.filename
        message = f"{error.strerror}: {name}" if name else str(error.strerror)
        return cls(CODES.get(error.errno or 0, "internal"), message)


def resolve_path(path: str, home: str) -> str:
    """Return the absolute path. Relative paths and `~/` are below the home directory."""
    if path == "~" or path.startswith("~/"):
        path = path[2:]
    return os.path.normpath(os.path.join(home, path))


def _entry(path: str) -> dict[str, Any]:
    found = os.lstat(path)
    info: dict[str, Any] = {"name": os.path.basename(path) or "/", "path": path}
    kind = stat.S_IFMT(found.st_mode)
    if kind == stat.S_IFLNK:
        info["symlinkTarget"] = os.path.realpath(path)
        try:
            kind = stat.S_IFMT(os.stat(path).st_mode)
        except OSError:
            kind = 0
    if kind in TYPES:
        info["type"] = TYPES[kind]
    permissions = stat.filemode(found.st_mode)
    info["permissions"] = "L" + permissions[1:] if permissions[0] == "l" else permissions
    info["mode"], info["size"] = stat.S_IMODE(found.st_mode), str(found.st_size)
    info["owner"], info["group"] = _user_name(found.st_uid), _group_name(found.st_gid)
    info["modifiedTime"] = datetime.fromtimestamp(found.st_mtime, UTC).isoformat().replace("+00:00", "Z")
    if metadata := METADATA.get((found.st_dev, found.st_ino)):
        info["metadata"] = metadata
    return info


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _stat(path: str) -> dict[str, Any]:
    return {"entry": _entry(path)}


def _list(path: str, depth: int = 1) -> dict[str, Any]:
    if not os.path.isdir(path):
        os.stat(path)
        raise GuestError("invalid_argument", f"path is not a directory: {path}")
    entries: list[dict[str, Any]] = []
    waiting = [(path, max(1, depth))]
    while waiting:
        parent, left = waiting.pop()
        for name in sorted(os.listdir(parent)):
            child = os.path.join(parent, name)
            try:
                entry = _entry(child)
            except FileNotFoundError:
                continue
            entries.append(entry)
            if left > 1 and entry.get("type") == "FILE_TYPE_DIRECTORY" and "symlinkTarget" not in entry:
                waiting.append((child, left - 1))
        if len(entries) > MAX_ENTRIES:
            raise GuestError("resource_exhausted", f"directory has more than {MAX_ENTRIES} entries: list less depth")
    return {"entries": entries}


def _make_dir(path: str) -> dict[str, Any]:
    if os.path.isdir(path):
        raise GuestError("already_exists", f"directory already exists: {path}")
    try:
        os.makedirs(path)
    except (FileExistsError, NotADirectoryError):
        raise GuestError("invalid_argument", f"path exists and is not a directory: {path}") from None
    return {"entry": _entry(path)}


def _move(path: str, destination: str) -> dict[str, Any]:
    os.lstat(path)
    os.makedirs(os.path.dirname(destination), exist_ok=True)
    if os.path.isdir(destination) and not os.path.isdir(path):
        raise GuestError("invalid_argument", f"destination is a directory: {destination}")
    try:
        os.rename(path, destination)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.move(path, destination)
    return {"entry": _entry(destination)}


def _remove(path: str) -> dict[str, Any]:
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.remove(path)
    except FileNotFoundError:
        pass
    return {}


def _read(path: str, offset: int, limit: int) -> dict[str, Any]:
    if os.path.isdir(path):
        raise GuestError("invalid_argument", f"path is a directory: {path}")
    if os.path.exists(path) and not os.path.isfile(path):
        raise GuestError("invalid_argument", f"path is not a regular file: {path}")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(offset)
        data = file.read(limit)
    return {"data": base64.b64encode(data).decode(), "size": size}


def _write(path: str, offset: int, data: str, metadata: dict[str, str] | None = None) -> dict[str, Any]:
    if os.path.isdir(path):
        raise GuestError("invalid_argument", f"path is a directory: {path}")
    if offset == 0:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb" if offset == 0 else "r+b") as file:
        file.seek(offset)
        file.write(base64.b64decode(data))
        found = os.fstat(file.fileno())
    if offset == 0:
        METADATA.pop((found.st_dev, found.st_ino), None)
        if metadata:
            METADATA[(found.st_dev, found.st_ino)] = metadata
    return {"entry": _entry(path)}


OPERATIONS = {
    "stat": _stat,
    "list": _list,
    "make_dir": _make_dir,
    "move": _move,
    "remove": _remove,
    "read": _read,
    "write": _write,
}
