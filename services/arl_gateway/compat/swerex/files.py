"""SWE-ReX's file operations, executed by programs in the environment, with their view and permissions.

Content is written from the standard input of such a program. Content above the input limit of an action is first
unpacked as an archive into a new directory below the working directory. A program then installs it from there.
"""

import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from base64 import b64encode
from codecs import lookup
from dataclasses import dataclass
from typing import Any

from arl_core.domain.states import ActionOutcome
from arl_gateway.compat.swerex.errors import SwerexError, parse_os_error, raise_if_infra_error
from arl_gateway.compat.swerex.models import SwerexReadFileRequest
from arl_gateway.compat.swerex.programs import SHELL, raise_if_truncated, stream_bytes
from arl_wire.actions.action import Action

__all__ = ["FileTransfer", "decode_file", "raise_if_failed", "read_fields", "unzip_transfer", "write_transfer"]

C_LOCALE = {"LC_ALL": "C"}
READ_SCRIPT = 'exec cat -- "$1"'
MAKE_PARENT_SCRIPT = 'case "$1" in */*) mkdir -p -- "${1%/*}/" || exit;; esac; '
WRITE_SCRIPT = MAKE_PARENT_SCRIPT + 'base64 -d > "$1"'
UNPACK_SCRIPT = 'mkdir -p -- "$1" && base64 -d | tar -xzof - -C "$1"'
# `$2` is the staging directory of this call only.
INSTALL_FILE_SCRIPT = "trap 'rm -rf -- \"$2\"' EXIT; " + MAKE_PARENT_SCRIPT + 'cat -- "$2/file" > "$1"'
INSTALL_TREE_SCRIPT = 'trap \'rm -rf -- "$2"\' EXIT; mkdir -p -- "$1" && cp -R -- "$2/." "$1/"'
MAX_STDIN_BYTES = 8 << 20
MAX_UNPACKED_BYTES, MAX_MEMBERS = 256 << 20, 65_536
MAX_DIRECTORY_BYTES = 16 << 20
"""Maximum bytes of the directory of a zip archive; an entry has about 100."""
FAST_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
"""Compression methods that SWE-ReX's client uses. Others take up to a hundred times as long."""
END_OF_DIRECTORY = b"PK\x05\x06"
END_RECORD = struct.Struct("<12sI6x")
"""The end record: at offset 12, the size of the directory. An archive that needs more than 32 bits says `ffffffff`."""
MAX_END_BYTES = END_RECORD.size + 0xFFFF
ARCHIVE_ERRORS = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, NotImplementedError, RuntimeError, EOFError, OSError)
SLOW_CODECS = frozenset({"punycode", "idna"})
"""Codecs whose time is quadratic in the length of the text."""


@dataclass(frozen=True, slots=True)
class FileTransfer:
    """The fields of the action that writes the content.

    Content above the input limit is an `archive` that must be at `staging_path` before the action runs.
    """

    action_fields: dict[str, Any]
    archive: bytes | None = None
    staging_path: str = ""


def read_fields(path: str) -> dict[str, Any]:
    """Return the fields of the action that prints a file."""
    return {"argv": [*SHELL, READ_SCRIPT, "sh", path], "env": C_LOCALE}


def decode_file(action: Action, body: SwerexReadFileRequest) -> str:
    """Return the text of a file. Raises SwerexError."""
    raise_if_failed(action, body.path)
    raise_if_truncated(action, body.path)
    content = stream_bytes(action.result.stdout) if action.result is not None else b""
    try:
        if body.encoding is not None and lookup(body.encoding).name in SLOW_CODECS:
            raise LookupError(f"the encoding {body.encoding} is not supported")
        text = io.TextIOWrapper(io.BytesIO(content), body.encoding or "utf-8", body.errors or "strict")
        found = text.read()
        found.encode()  # bytes decoded by `surrogateescape` cannot be expressed in JSON
        return found
    except UnicodeError as error:
        raise SwerexError(str(error), f"builtins.{type(error).__name__}") from None
    except (LookupError, ValueError, TypeError) as error:
        raise SwerexError(str(error).strip("'"), f"builtins.{type(error).__name__}") from None


def write_transfer(path: str, content: bytes, marker: str) -> FileTransfer:
    """Build the transfer that writes a file. It creates parent directories and keeps an existing file's mode and
    links.
    """
    return _inline_transfer(WRITE_SCRIPT, path, content) or _staged_transfer(
        INSTALL_FILE_SCRIPT, path, _tar_of_file(content), marker
    )


def unzip_transfer(path: str, archive: bytes, marker: str) -> FileTransfer:
    """Build the transfer that unpacks a zip archive into a directory, which is created. Raises SwerexError."""
    try:
        packed = _zip_to_tar(archive)
    except (*ARCHIVE_ERRORS, ValueError) as error:
        raise SwerexError(f"the zip archive cannot be read: {error}", "zipfile.BadZipFile") from None
    return _inline_transfer(UNPACK_SCRIPT, path, packed) or _staged_transfer(INSTALL_TREE_SCRIPT, path, packed, marker)


def raise_if_failed(action: Action, path: str) -> None:
    """Raise SwerexError if the action failed, as an `OSError` if its error text is known."""
    raise_if_infra_error(action)
    if action.outcome is ActionOutcome.OK:
        return
    said = stream_bytes(action.result.stderr).decode(errors="backslashreplace") if action.result is not None else ""
    if (known := parse_os_error(said, path)) is not None and action.outcome is ActionOutcome.USER_ERROR:
        raise known
    why = said.strip() or action.message or action.reason
    raise SwerexError(f"{path!r}: {action.outcome}: {why}", action=str(action.id))


def _inline_transfer(script: str, path: str, content: bytes) -> FileTransfer | None:
    """Return a transfer by standard input, or None if the content is above the input limit."""
    if len(content) > MAX_STDIN_BYTES // 4 * 3:
        return None
    return FileTransfer({"argv": [*SHELL, script, "sh", path], "env": C_LOCALE, "stdin": b64encode(content).decode()})


def _staged_transfer(script: str, path: str, archive: bytes, marker: str) -> FileTransfer:
    at = f".tangram-{marker}"
    return FileTransfer({"argv": [*SHELL, script, "sh", path, at], "env": C_LOCALE}, archive, at)


def _tar_of_file(content: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        found = tarfile.TarInfo("file")
        found.size = len(content)
        tar.addfile(found, io.BytesIO(content))
    return packed.getvalue()


def _zip_to_tar(archive: bytes) -> bytes:
    """Convert a zip archive. Keep only files and directories, with default modes, like `ZipFile.extractall`."""
    _check_directory(archive)
    packed = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(archive)) as given,
        tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as tar,
    ):
        if sum(member.file_size for member in given.infolist()) > MAX_UNPACKED_BYTES:
            raise ValueError(f"the files of the archive must have at most {MAX_UNPACKED_BYTES} bytes in total")
        if len(given.infolist()) > MAX_MEMBERS:
            raise ValueError(f"the archive must have at most {MAX_MEMBERS} files")
        for member in given.infolist():
            parts = member.filename.split("/")
            found = tarfile.TarInfo("/".join(part for part in parts if part not in ("", ".", "..")))
            if not found.name:
                continue
            if member.compress_type not in FAST_METHODS:
                raise ValueError("the files of the archive must be stored or deflated")
            if member.is_dir():
                found.type, found.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(found)
                continue
            found.size = member.file_size
            with given.open(member) as content:
                tar.addfile(found, content)
    return packed.getvalue()


def _check_directory(archive: bytes) -> None:
    """Raise ValueError if the directory of a zip archive is too large. `ZipFile` parses all of it at once."""
    at = archive.rfind(END_OF_DIRECTORY, max(0, len(archive) - MAX_END_BYTES))
    if at >= 0 and len(archive) >= at + END_RECORD.size:
        size = END_RECORD.unpack_from(archive, at)[1]
        if size > MAX_DIRECTORY_BYTES:
            raise ValueError(f"the directory of the archive must have at most {MAX_DIRECTORY_BYTES} bytes")
