"""SWE-ReX's files: read and written by programs of the environment, wherever it can see and write.

What is written comes as the input of such a program. More than an action's input may have is laid down beforehand as
an archive, in a directory of its own below the working directory, and taken from there.
"""

import io
import lzma
import tarfile
import zipfile
import zlib
from base64 import b64encode
from codecs import lookup
from dataclasses import dataclass
from typing import Any

from arl_core.states import Outcome
from arl_gateway.compat.swerex.bodies import ReadFile
from arl_gateway.compat.swerex.errors import RaisedThere, os_error_of, unless_ours
from arl_gateway.compat.swerex.programs import SHELL, bytes_of, must_be_whole
from arl_wire.actions import Action

__all__ = ["Parcel", "must_be_done", "read", "reading", "unpacking", "writing"]

C_LOCALE = {"LC_ALL": "C"}
READ = 'exec cat -- "$1"'
IN_ITS_DIRECTORY = 'case "$1" in */*) mkdir -p -- "${1%/*}/" || exit;; esac; '
WRITE = IN_ITS_DIRECTORY + 'base64 -d > "$1"'
UNPACK = 'mkdir -p -- "$1" && base64 -d | tar -xzof - -C "$1"'
# From `$2`, which nobody else has.
TAKE_FILE = "trap 'rm -rf -- \"$2\"' EXIT; " + IN_ITS_DIRECTORY + 'cat -- "$2/file" > "$1"'
TAKE_TREE = 'trap \'rm -rf -- "$2"\' EXIT; mkdir -p -- "$1" && cp -R -- "$2/." "$1/"'
MOST_STDIN = 8 << 20
MOST_UNPACKED, MOST_MEMBERS = 256 << 20, 100_000
UNREADABLE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, NotImplementedError, RuntimeError, EOFError, OSError)
SLOW_CODECS = frozenset({"punycode", "idna"})
"""They take time that grows with the square of a text's length."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """What an action is given to write it; and, if it is too much for that, what has to be at `laid_at` before."""

    given: dict[str, Any]
    archive: bytes | None = None
    laid_at: str = ""


def reading(path: str) -> dict[str, Any]:
    return {"argv": [*SHELL, READ, "sh", path], "env": C_LOCALE}


def read(action: Action, body: ReadFile) -> str:
    """Raises RaisedThere."""
    must_be_done(action, body.path)
    must_be_whole(action, body.path)
    content = bytes_of(action.result.stdout) if action.result is not None else b""
    try:
        if body.encoding is not None and lookup(body.encoding).name in SLOW_CODECS:
            raise LookupError(f"{body.encoding} is not decoded here")
        text = io.TextIOWrapper(io.BytesIO(content), body.encoding or "utf-8", body.errors or "strict")
        found = text.read()
        found.encode()  # what `surrogateescape` made of bytes is no text that JSON could say
        return found
    except UnicodeError as error:
        raise RaisedThere(str(error), f"builtins.{type(error).__name__}") from None
    except (LookupError, ValueError, TypeError) as error:
        raise RaisedThere(str(error).strip("'"), f"builtins.{type(error).__name__}") from None


def writing(path: str, content: bytes, mark: str) -> Parcel:
    """Its directories are made. A file keeps its mode, and what leads to it."""
    return _parcel(WRITE, path, content) or _laid(TAKE_FILE, path, _packed(content), mark)


def unpacking(path: str, archive: bytes, mark: str) -> Parcel:
    """Of a zip archive, into a directory that is made. Raises RaisedThere."""
    try:
        packed = _as_tar(archive)
    except (*UNREADABLE, ValueError) as error:
        raise RaisedThere(f"the archive cannot be read: {error}", "zipfile.BadZipFile") from None
    return _parcel(UNPACK, path, packed) or _laid(TAKE_TREE, path, packed, mark)


def must_be_done(action: Action, path: str) -> None:
    """Raises RaisedThere: what a system call said, where that is known."""
    unless_ours(action)
    if action.outcome is Outcome.OK:
        return
    said = bytes_of(action.result.stderr).decode(errors="backslashreplace") if action.result is not None else ""
    if (known := os_error_of(said, path)) is not None and action.outcome is Outcome.USER_ERROR:
        raise known
    why = said.strip() or action.message or action.reason
    raise RaisedThere(f"{path!r}: {action.outcome}: {why}", action=str(action.id))


def _parcel(script: str, path: str, content: bytes) -> Parcel | None:
    """None where it is more than the input of an action."""
    if len(content) > MOST_STDIN // 4 * 3:
        return None
    return Parcel({"argv": [*SHELL, script, "sh", path], "env": C_LOCALE, "stdin": b64encode(content).decode()})


def _laid(script: str, path: str, archive: bytes, mark: str) -> Parcel:
    at = f".tangram-{mark}"
    return Parcel({"argv": [*SHELL, script, "sh", path, at], "env": C_LOCALE}, archive, at)


def _packed(content: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        found = tarfile.TarInfo("file")
        found.size = len(content)
        tar.addfile(found, io.BytesIO(content))
    return packed.getvalue()


def _as_tar(archive: bytes) -> bytes:
    """Files and directories alone, with plain modes, as `ZipFile.extractall` makes them."""
    packed = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(archive)) as given,
        tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as tar,
    ):
        if sum(member.file_size for member in given.infolist()) > MOST_UNPACKED:
            raise ValueError(f"its files have more than {MOST_UNPACKED} bytes")
        if len(given.infolist()) > MOST_MEMBERS:
            raise ValueError(f"it has more than {MOST_MEMBERS} files")
        for member in given.infolist():
            parts = member.filename.split("/")
            found = tarfile.TarInfo("/".join(part for part in parts if part not in ("", ".", "..")))
            if not found.name:
                continue
            if member.is_dir():
                found.type, found.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(found)
                continue
            found.size = member.file_size
            with given.open(member) as content:
                tar.addfile(found, content)
    return packed.getvalue()
