"""Programs and files of an environment in the form in which frameworks use a sandbox.

Frameworks name absolute paths and any working directory. The API takes paths below the working directory only, so the
other paths are opened by a shell inside the environment, with the permissions of its user. The template needs `sh`,
`cat`, `mkdir`, `rm` and `wc`.
"""

import errno
import os
import posixpath
import tarfile
import tempfile
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4

from arl_core.domain.states import ActionOutcome
from arl_tangram.environment_handles import AsyncEnvironment
from arl_tangram.operations import ActionFailed
from arl_wire.actions.action import Action
from arl_wire.validation import OutputStream

__all__ = ["CUT_NOTE", "AsyncEnvironmentPrograms", "FileTransferError", "ProgramOutput", "in_directory"]

SHELL = ("/bin/sh", "-c")
# Programs of the scripts are never looked up in directories that a program of the environment may have put into PATH.
_OWN_PATH = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
_CHANGE_DIRECTORY = 'cd -- "$1" || exit 1; shift; exec "$@"'
_READ_STDIN = f'exec < "$1" || exit 1; {_OWN_PATH} rm -f -- "$1"; shift; exec "$@"'
# The exit code is the errno of the failure; the first argument is the path. A small file is printed, so that nothing
# stays in the working directory, where `git status` would show it.
_READ = f"""{_OWN_PATH}
[ -d "$1" ] && exit {errno.EISDIR}; [ -e "$1" ] || exit {errno.ENOENT}; [ -r "$1" ] || exit {errno.EACCES}
size=$(wc -c < "$1") || exit {errno.EIO}; [ "$size" -le "$3" ] || exit {errno.EFBIG}
if [ "$size" -le "$4" ]; then exec cat < "$1"; fi
cat < "$1" > "$2" || {{ rm -f -- "$2"; exit {errno.EIO}; }}; printf staged >&2"""
_WRITE = f"""{_OWN_PATH}
trap 'rm -f -- "$2"' EXIT; [ -d "$1" ] && exit {errno.EISDIR}
case $1 in */*) mkdir -p -- "${{1%/*}}/" || exit {errno.EIO};; esac
[ ! -e "$1" ] || [ -w "$1" ] || exit {errno.EACCES}
cat < "$2" > "$1" || exit {errno.EIO}"""
_COPY = f'{_OWN_PATH}; mkdir -p -- "$2" && cp -R -- "$1/." "$2/"'
_REMOVE = ("rm", "-rf", "--")
_FILE_ERRORS = (errno.EISDIR, errno.ENOENT, errno.EACCES, errno.EFBIG)
"""Exit codes of the scripts with their own meaning. Any other one is `EIO`."""
FILE_TIMEOUT_S = 120.0
MAX_INLINE_BYTES = 8 << 20
"""Bytes that an action carries as a file; larger files travel as an archive."""
MAX_PRINTED_BYTES = 1 << 20
"""Bytes of its output that an action stores."""
MAX_READ_BYTES = 100 << 20
CUT_NOTE = "[only the first MiB of the output is stored]"


class FileTransferError(OSError):
    """A file inside the environment could not be read or written."""


class MissingFile(FileTransferError, FileNotFoundError):
    """The file does not exist."""


class FileIsDirectory(FileTransferError, IsADirectoryError):
    """The path is a directory."""


class FileNotAccessible(FileTransferError, PermissionError):
    """The user of the environment may not open the file."""


_ERROR_TYPES: dict[int, type[FileTransferError]] = {
    errno.ENOENT: MissingFile,
    errno.EISDIR: FileIsDirectory,
    errno.EACCES: FileNotAccessible,
}


@dataclass(frozen=True)
class ProgramOutput:
    """The end of a program that ran. An infrastructure error is never one."""

    action: Action
    stdout: bytes
    stderr: bytes
    exit_code: int
    """Exit code as a shell reports it: 128 plus the number of a signal, and 1 for a limit without an exit code."""

    @classmethod
    def of(cls, action: Action) -> "ProgramOutput":
        """Return the output of a settled action. Raises `ActionFailed` for an outcome that says nothing about it."""
        if action.masked:
            raise ActionFailed(action)
        result = action.result
        if result is None:  # a limit of the environment that an earlier program exceeded
            return cls(action, b"", b"", 1)
        code = result.exit_code if result.exit_code is not None else 128 + result.signal if result.signal else 1
        if action.outcome is ActionOutcome.LIMIT_EXCEEDED:
            code = code or 1
        return cls(action, _bytes_of(result.stdout), _bytes_of(result.stderr), code)

    @property
    def has_run(self) -> bool:
        """True if the program ran. It does not run if, for example, its user does not exist."""
        result = self.action.result
        return result is not None and (result.exit_code is not None or result.signal is not None)

    @property
    def reason(self) -> str:
        """Why the program failed, in the words of the system; empty if it ended by itself."""
        failed = self.exit_code or self.action.outcome is not ActionOutcome.OK
        return (self.action.message or self.action.reason or "") if failed else ""

    def stderr_with_reason(self) -> str:
        """Return stderr, and on lines of their own that it is cut and why the program failed."""
        notes = [CUT_NOTE] if self.truncated else []
        notes += [self.reason] if self.reason else []
        text = self.stderr.decode(errors="replace")
        separator = "\n" if notes and text and not text.endswith("\n") else ""
        return text + separator + "".join(f"{note}\n" for note in notes)

    @property
    def timed_out(self) -> bool:
        """True if the program ran longer than its timeout and was ended."""
        return self.action.outcome is ActionOutcome.USER_TIMEOUT

    @property
    def truncated(self) -> bool:
        """True if the program wrote more than an action stores; the beginning is stored."""
        result = self.action.result
        return result is not None and (result.stdout.truncated or result.stderr.truncated)


class AsyncEnvironmentPrograms:
    """Run programs and transfer files in an environment, by any path.

    Each method is one action, and up to three for a file of more than 1 MiB. All raise `ActionFailed` for an
    infrastructure error, and the errors of the client if a request fails.
    """

    def __init__(self, environment: AsyncEnvironment, **options: Any) -> None:
        """Use an existing environment. `options`: options of every program, such as `cpu`."""
        self.environment = environment
        self._options = options

    async def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        stdin: bytes | str | None = None,
        **options: Any,
    ) -> ProgramOutput:
        """Run a program and return its output; `options`: further options of `AsyncTangram.run`."""
        given: dict[str, Any] = {**self._options, **options}
        if isinstance(stdin, str) and "\0" not in stdin and len(stdin) < MAX_INLINE_BYTES:
            given["stdin"] = stdin
        elif stdin is not None:
            staged = await self._stage(stdin.encode() if isinstance(stdin, str) else stdin, given)
            argv = (*SHELL, _READ_STDIN, "sh", staged, *in_directory(argv, cwd))
            cwd = None
        return ProgramOutput.of(await self.environment.run(argv=in_directory(argv, cwd), **given))

    async def read(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """Return the content of a file. Raises an `OSError` with the path, `EFBIG` for more than `max_bytes`."""
        staged = _staged_name()
        argv = [*SHELL, _READ, "sh", _as_argument(path), staged, str(max_bytes), str(MAX_PRINTED_BYTES)]
        options = {**self._options, "timeout_s": FILE_TIMEOUT_S}
        output = ProgramOutput.of(await self.environment.run(argv=argv, **options))
        _raise_file_error(output, path)
        if output.stderr != b"staged":
            if output.truncated:
                raise FileTransferError(errno.EIO, "the file grew while it was read", path)
            return output.stdout
        try:
            with tempfile.TemporaryDirectory(prefix="tangram-") as directory:
                await self.environment.download(staged, directory)
                return (Path(directory) / staged).read_bytes()
        finally:
            await self.environment.submit(argv=["rm", "-f", "--", staged], **options)

    async def write(self, path: str, content: bytes) -> None:
        """Write a file and create its parent directories. Raises an `OSError` with the path."""
        options: dict[str, Any] = {**self._options, "timeout_s": FILE_TIMEOUT_S}
        staged = await self._stage(content, options)
        argv = [*SHELL, _WRITE, "sh", _as_argument(path), staged]
        _raise_file_error(ProgramOutput.of(await self.environment.run(argv=argv, **options)), path)

    async def upload_directory(self, source: Path | str, target: str) -> None:
        """Copy a local directory into the directory `target`, which is created. The template needs `cp`."""
        staged = _staged_name()
        await self.environment.upload(source, staged)
        await self._copy(staged, target, staged)

    async def download_directory(self, source: str, target: Path | str) -> None:
        """Copy a directory into a local one. The template needs `cp`. Raises an `OSError` with the path."""
        staged = _staged_name()
        try:
            await self._copy(source, staged)
            await self.environment.download(staged, target)
        finally:
            await self.environment.run(argv=[*_REMOVE, staged], timeout_s=FILE_TIMEOUT_S, **self._options)

    async def _copy(self, source: str, target: str, *removed: str) -> None:
        script = f'{_COPY}; code=$?; shift 2; {" ".join(_REMOVE)} "$@"; exit $code'
        argv = [*SHELL, script, "sh", _as_argument(source), _as_argument(target), *removed]
        output = ProgramOutput.of(await self.environment.run(argv=argv, timeout_s=FILE_TIMEOUT_S, **self._options))
        _raise_file_error(output, source)

    async def _stage(self, content: bytes, options: dict[str, Any]) -> str:
        """Put the content under a new name into the working directory: with the next action, or now if it is large."""
        staged = _staged_name()
        if len(content) <= MAX_INLINE_BYTES:
            options["files"] = {**options.get("files", {}), staged: content}
            return staged
        with tempfile.TemporaryDirectory(prefix="tangram-") as directory:
            archive = Path(directory) / "archive.tar"
            with tarfile.open(archive, "w") as packed:
                member = tarfile.TarInfo(staged)
                member.size = len(content)
                packed.addfile(member, BytesIO(content))
            await self.environment.upload(archive)
        return staged


def in_directory(argv: Sequence[str], cwd: str | None) -> list[str]:
    """Return a command that runs the program in `cwd`, which may be absolute; without one it is unchanged."""
    return [*SHELL, _CHANGE_DIRECTORY, "sh", cwd, *argv] if cwd else list(argv)


def _raise_file_error(output: ProgramOutput, path: str) -> None:
    """Raise the error that the exit code of a script means. A script that was ended or did not run gives `EIO`."""
    if not output.exit_code and not output.timed_out:
        return
    said = output.reason or output.stderr.decode(errors="replace").strip()
    if output.timed_out:
        said = f"the transfer took longer than {FILE_TIMEOUT_S:.0f} s"
    is_own = output.action.outcome is ActionOutcome.USER_ERROR and output.exit_code in _FILE_ERRORS
    code = output.exit_code if is_own and output.has_run else errno.EIO
    raise _ERROR_TYPES.get(code, FileTransferError)(code, os.strerror(code) if is_own or not said else said, path)


def _as_argument(path: str) -> str:
    """Return the path in a form that no program takes for an option."""
    return path if posixpath.isabs(path) else f"./{path}"


def _staged_name() -> str:
    """Return a new name. It is random, so that no program can create the file in advance."""
    return f".tangram-{uuid4().hex}"


def _bytes_of(stream: OutputStream) -> bytes:
    return b64decode(stream.base64) if stream.base64 is not None else stream.text.encode()
