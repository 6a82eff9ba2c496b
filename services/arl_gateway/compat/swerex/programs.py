"""SWE-ReX's `execute` and its files, as programs in an environment, and what they say there in SWE-ReX's words."""

import io
import lzma
import re
import tarfile
import zipfile
import zlib
from base64 import b64decode, b64encode
from codecs import lookup
from typing import Any

from arl_core.states import Outcome
from arl_gateway.compat.swerex.bodies import Execute, ExecuteReply, ReadFile
from arl_gateway.compat.swerex.errors import RaisedThere, os_error, os_error_of, unless_ours
from arl_wire.actions import Action
from arl_wire.streams import OutputStream

__all__ = ["bytes_of", "executing", "must_be_done", "ran", "read", "reading", "unpacking", "writing"]

NOT_STARTED = "cannot run "
"""How the message of an action begins whose program is not in its environment."""
C_LOCALE = {"LC_ALL": "C"}
SHELL = ("/bin/sh", "-c")
# Where the program does not take its place it says why behind a mark: what is in stderr otherwise is the program's.
# As the shell's own name the mark is not among what the program can see.
ELSEWHERE = r"""why=cwd:2; trap 'printf %s "$0:$why:" >&2' EXIT
if [ -n "$1" ]; then
  [ -e "$1" ] && why=cwd:20; [ -d "$1" ] && why=cwd:13
  case "$1" in /*) where=$1;; *) where=./$1;; esac
  CDPATH= cd "$where" 2>/dev/null || exit 1
  unset OLDPWD
fi
shift; why=program; exec "$@" """
MERGED = "2>&1"
READ = 'exec cat -- "$1"'
WRITE = 'case "$1" in */*) mkdir -p -- "${1%/*}/" || exit;; esac; base64 -d > "$1"'
UNPACK = 'mkdir -p -- "$1" && base64 -d | tar -xzof - -C "$1"'
MOST_STDIN = 8 << 20
MOST_UNPACKED, MOST_MEMBERS = 256 << 20, 100_000
UNREADABLE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, NotImplementedError, RuntimeError, EOFError, OSError)
SLOW_CODECS = frozenset({"punycode", "idna"})
"""They take time that grows with the square of a text's length."""


def executing(body: Execute, mark: str) -> dict[str, Any]:
    """What an action is given. A variable that is given replaces all others, as with Python's `subprocess`."""
    given = [body.command] if isinstance(body.command, str) else body.command
    argv = [*SHELL, *given] if body.shell else list(given)
    if body.env is not None or body.cwd is not None or body.merge_output_streams:
        script = ELSEWHERE + (MERGED if body.merge_output_streams else "")
        argv = [*_variables(body.env), *SHELL, script, mark, body.cwd or "", *argv]
    return {"argv": argv}


def _variables(env: dict[str, str] | None) -> list[str]:
    if env is None:
        return []
    if any(not name or "=" in name for name in env):
        raise RaisedThere("illegal environment variable name", "builtins.ValueError")
    return ["env", "-i", "--", *(f"{name}={value}" for name, value in env.items())]


def ran(action: Action, body: Execute, mark: str) -> ExecuteReply:
    """Raises RaisedThere."""
    unless_ours(action)
    if action.outcome is Outcome.USER_TIMEOUT:
        message = f"Timeout ({body.timeout}s) exceeded while running command"
        raise RaisedThere(message, "CommandTimeoutError", **_streams(action))
    _must_have_begun(action, body, mark)
    _must_be_whole(action)
    reply = ExecuteReply(**_streams(action), exit_code=_exit_code(action))
    if action.outcome is Outcome.LIMIT_EXCEEDED:
        reply.exit_code = reply.exit_code or 1
        reply.stderr += f"\nlimit exceeded: {action.reason}\n"
    return _checked(reply, body)


def _checked(reply: ExecuteReply, body: Execute) -> ExecuteReply:
    if body.check and reply.exit_code != 0:
        message = (
            f"Command {body.command!r} failed with exit code {reply.exit_code}. "
            f"Stdout:\n{reply.stdout!r}\nStderr:\n{reply.stderr!r}"
        )
        raise RaisedThere(f"{body.error_msg}: {message}" if body.error_msg else message, "NonZeroExitCodeError")
    return reply


def reading(path: str) -> dict[str, Any]:
    return {"argv": [*SHELL, READ, "sh", path], "env": C_LOCALE}


def read(action: Action, body: ReadFile) -> str:
    """Raises RaisedThere."""
    must_be_done(action, body.path)
    _must_be_whole(action, body.path)
    content = bytes_of(action.result.stdout) if action.result is not None else b""
    try:
        if body.encoding is not None and lookup(body.encoding).name in SLOW_CODECS:
            raise LookupError(f"{body.encoding} is not decoded here")
        text = io.TextIOWrapper(io.BytesIO(content), body.encoding or "utf-8", body.errors or "strict")
        return text.read()
    except UnicodeDecodeError as error:
        raise RaisedThere(str(error), "builtins.UnicodeDecodeError") from None
    except (LookupError, ValueError, TypeError) as error:
        raise RaisedThere(str(error).strip("'"), f"builtins.{type(error).__name__}") from None


def writing(path: str, content: bytes) -> dict[str, Any]:
    """Its directories are made. A file keeps its mode, and what leads to it."""
    return {"argv": [*SHELL, WRITE, "sh", path], "env": C_LOCALE, "stdin": _typed(content)}


def unpacking(path: str, archive: bytes) -> dict[str, Any]:
    """Of a zip archive, into a directory that is made. Raises RaisedThere."""
    try:
        packed = _as_tar(archive)
    except (*UNREADABLE, ValueError) as error:
        raise RaisedThere(f"the archive cannot be read: {error}", "zipfile.BadZipFile") from None
    return {"argv": [*SHELL, UNPACK, "sh", path], "env": C_LOCALE, "stdin": _typed(packed)}


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


def bytes_of(stream: OutputStream) -> bytes:
    return b64decode(stream.base64) if stream.base64 is not None else stream.text.encode()


def _typed(content: bytes) -> str:
    encoded = b64encode(content).decode()
    if len(encoded) > MOST_STDIN:
        most = MOST_STDIN // 4 * 3
        message = f"it has {len(content)} bytes packed, and {most} can be sent; `PUT …/archive` takes more"
        raise RaisedThere(message, code="too_large")
    return encoded


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


def _must_have_begun(action: Action, body: Execute, mark: str) -> None:
    streams, message = _streams(action), action.message or ""
    if found := re.search(rf"{mark}:(?:cwd:(\d+)|program):$", streams["stderr"] or streams["stdout"]):
        if found[1] is not None:
            raise os_error(int(found[1]), body.cwd or "")
        raise os_error(_number_of(action), _program(body))
    if message.startswith(NOT_STARTED) and action.outcome is Outcome.USER_ERROR:
        raise os_error(_number_of(action), executing(body, mark)["argv"][0])
    if action.outcome is Outcome.USER_ERROR and _exit_code(action) is None:
        raise RaisedThere(f"it was not run: {message or action.outcome}", action=str(action.id))


def _number_of(action: Action) -> int:
    """127 is what is not there, as of a shell; anything else cannot be executed."""
    return 2 if _exit_code(action) == 127 else 13


def _program(body: Execute) -> str:
    if body.shell:
        return SHELL[0]
    return body.command if isinstance(body.command, str) else body.command[0]


def _must_be_whole(action: Action, what: str = "") -> None:
    """An output that is cut is no answer to who reads it by a program."""
    streams = {"stdout": action.result.stdout, "stderr": action.result.stderr} if action.result is not None else {}
    for name, stream in streams.items():
        if stream.truncated:
            kept = len(bytes_of(stream))
            raise RaisedThere(
                f"{what or name} has {stream.total_bytes} bytes, and only the first {kept} of an output are kept; "
                "write it to a file, and read that by /v1/environments/ID/archive",
                exit_code=_exit_code(action),
                **_streams(action),
            )


def _streams(action: Action) -> dict[str, str]:
    result = action.result
    if result is None:
        return {"stdout": "", "stderr": ""}
    return {
        name: bytes_of(stream).decode(errors="backslashreplace")
        for name, stream in (("stdout", result.stdout), ("stderr", result.stderr))
    }


def _exit_code(action: Action) -> int | None:
    """As Python's `subprocess` has it."""
    result = action.result
    if result is None or (result.exit_code is None and result.signal is None):
        return None
    return result.exit_code if result.exit_code is not None else -(result.signal or 0)
