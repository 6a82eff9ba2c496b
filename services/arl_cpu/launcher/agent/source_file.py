"""The source of an action as a file of its working directory, so that it runs as `python3 main.py` does."""

import errno
import fcntl
import itertools
import os
from collections.abc import Iterator

from arl_cpu.launcher.agent.agent_request import AgentRequest

__all__ = ["PlacedSource"]

_MAX_NAMES = 100
_PIPE_BYTES = 1 << 20
"""Largest pipe that an ordinary user may create."""


class PlacedSource:
    """A file with an action's source. Raises OSError if no directory accepts it."""

    def __init__(self, request: AgentRequest) -> None:
        self.inherited: tuple[int, ...] = ()
        """File in memory that the program inherits, if the environment has no space for another file."""
        self.path = ""
        """Path for the interpreter, relative to the working directory if the file is there."""
        self._directory: int | None = None
        try:
            self._place_in(request.cwd, request.source)
            self.path = self._name
        except OSError as failure:
            self._place_elsewhere(request, failure)

    def _place_elsewhere(self, request: AgentRequest, failure: OSError) -> None:
        temporary = request.env.get("TMPDIR", "")
        for directory in (temporary if temporary.startswith("/") else "/tmp", "/dev/shm"):  # noqa: S108  # private
            try:
                self._place_in(directory, request.source)
            except OSError:
                continue
            self.path = f"{directory}/{self._name}"
            return
        try:
            file = _create_in_memory(request.source)
        except OSError:
            raise failure from None
        self.inherited, self.path = (file,), f"/dev/fd/{file}"

    def close(self) -> None:
        """Close the file in memory after the start of the program."""
        for file in self.inherited:
            os.close(file)
        self.inherited = ()

    def remove(self) -> None:
        """Remove the file. A file that the program has changed belongs to the program and stays."""
        if self._directory is None:
            return
        try:
            if _identity(os.stat(self._name, dir_fd=self._directory, follow_symlinks=False)) == self._written:
                os.unlink(self._name, dir_fd=self._directory)
        except OSError:
            pass  # the program has removed or moved it
        os.close(self._directory)
        self._directory = None

    def _place_in(self, path: str, source: bytes) -> None:
        directory = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._create_in(directory, source)
        except OSError:
            os.close(directory)
            raise
        self._directory = directory

    def _create_in(self, directory: int, source: bytes) -> None:
        self._name, file = _create_free(directory)
        try:
            _write_all(file, source)
            self._written = _identity(os.fstat(file))
        except OSError:
            os.unlink(self._name, dir_fd=directory)
            raise
        finally:
            os.close(file)


def _create_in_memory(source: bytes) -> int:
    """Return a file in memory, or a pipe if the filter refuses such files. Raises OSError."""
    try:
        file = os.memfd_create("main.py", 0)
    except PermissionError:
        return _create_pipe(source)
    try:
        _write_all(file, source)
    except OSError:
        os.close(file)
        raise
    return file


def _create_pipe(source: bytes) -> int:
    read_end, write_end = os.pipe()
    try:
        if len(source) > fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        _write_all(write_end, source)
        os.set_inheritable(read_end, True)
    except OSError:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    return read_end


def _create_free(directory: int) -> tuple[str, int]:
    """Create a file with a free name. An existing file belongs to the program, so it is never replaced."""
    for name in itertools.islice(_names(), _MAX_NAMES):
        try:
            return name, os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=directory)
        except FileExistsError:
            continue
    raise FileExistsError("every name for the source is in use")


def _names() -> Iterator[str]:
    yield "main.py"
    yield from (f"main_{number}.py" for number in itertools.count(1))


def _write_all(file: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]


def _identity(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns
