"""File access by an environment's own agent, so that a race against it can only affect the sandbox."""

import errno
import os
import posixpath
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from arl_cpu.launcher.isolation.users import SandboxUser, acting_as
from arl_cpu.launcher.linux.packet_channel import PacketChannel
from arl_cpu.launcher.linux.syscalls import open_beneath

__all__ = ["FETCH_LIMIT_BYTES", "AgentWorkspace", "mode_of"]

FETCH_LIMIT_BYTES = 8 << 20
_MAX_UNFINISHED = 100


class AgentWorkspace:
    """The working directory of an environment. Paths are relative to it, or absolute below it."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._directory = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def mend(self, user: SandboxUser | None = None) -> str | None:
        """Repair the directory, which a program may have removed, replaced or closed to itself.

        Return a note if it was damaged. A new directory belongs to the user.
        """
        note = None
        try:
            if not os.path.isdir(self._root):
                note = self._make_again(user)
            elif not (found := os.stat(self._root)).st_mode & stat.S_IXUSR and found.st_uid == _uid_of(user):
                with acting_as(user):
                    os.chmod(self._root, stat.S_IMODE(found.st_mode) | stat.S_IRWXU)
                note = "the working directory could not be entered; its owner has all permissions again"
            directory = os.open(self._root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return note  # the action is refused with the reason
        os.close(self._directory)
        self._directory = directory
        return note

    def _make_again(self, user: SandboxUser | None) -> str:
        if os.path.lexists(self._root):
            os.rename(self._root, f"{self._root}.replaced")
        os.makedirs(os.path.dirname(self._root), exist_ok=True)
        os.mkdir(self._root)  # fails if a program was faster: the owner of its directory must not change
        if user is not None:
            os.chown(self._root, user.uid, user.gid, follow_symlinks=False)
        return "the working directory was missing and was created again, empty"

    def check_paths(self, paths: Iterable[str]) -> None:
        """Check the paths. Raises ValueError for a path that leads out."""
        for path in paths:
            self._relative_path(path)

    def check_directory(self, path: str) -> None:
        """Check an action's working directory: any visible directory is allowed. Raises ValueError."""
        if not os.path.isdir(path):
            raise ValueError(f"cwd {path!r} is not a directory of the environment")
        if not os.access(path, os.X_OK):
            raise ValueError(f"cwd {path!r} cannot be entered: {os.strerror(errno.EACCES)}")

    def write_files(self, files: Mapping[str, bytes]) -> None:
        """Write files below the working directory. Raises `ValueError` for a path that leads out."""
        for path, content in files.items():
            relative = self._relative_path(path)
            parent, name = posixpath.split(relative)
            os.makedirs(f"{self._root}/{parent}", exist_ok=True)
            directory = open_beneath(self._directory, parent or ".", os.O_PATH | os.O_DIRECTORY)
            try:
                before = mode_of(directory, name)
                if before is not None and stat.S_ISLNK(before):
                    self._write_through(relative, content)
                else:
                    _replace_file(directory, name, content, before)
            finally:
                os.close(directory)

    def _write_through(self, link: str, content: bytes) -> None:
        """Write to the target of a link if it is below the working directory."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK
        with os.fdopen(open_beneath(self._directory, link, flags, 0o644), "wb") as file:
            file.write(content)

    def send_files(self, paths: Sequence[str], channel: PacketChannel) -> str | None:
        """Send the existing files as opened descriptors. Return a message if a limit was exceeded."""
        message = None
        left = FETCH_LIMIT_BYTES
        for number, path in enumerate(paths):
            try:
                file = open_beneath(self._directory, self._relative_path(path), os.O_RDONLY | os.O_NONBLOCK)
            except (OSError, ValueError):
                continue
            found = os.fstat(file)
            if stat.S_ISREG(found.st_mode) and found.st_size > left:
                message = f"fetch returns at most {FETCH_LIMIT_BYTES} bytes in total; {path!r} has {found.st_size}"
            elif stat.S_ISREG(found.st_mode):
                left -= found.st_size
                try:
                    channel.send({"op": "file", "number": number, "size": found.st_size}, [file])
                except OSError as error:
                    if error.errno != errno.ETOOMANYREFS:
                        raise
                    message = message or "too many open files are in transit between processes of this user"
            os.close(file)
        return message

    def _relative_path(self, path: str) -> str:
        relative = posixpath.relpath(posixpath.join(self._root, path), self._root)
        if relative == "." or relative.startswith("../") or relative == ".." or "\0" in path:
            raise ValueError(f"path {path!r} is not inside the working directory")
        return relative


def _uid_of(user: SandboxUser | None) -> int:
    return os.geteuid() if user is None else user.uid


def mode_of(directory: int, name: str) -> int | None:
    """Return the mode of an entry, or None if it does not exist."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None


def _replace_file(directory: int, name: str, content: bytes, before: int | None) -> None:
    """Replace a file completely or not at all. An existing file keeps its mode."""
    if before is not None and stat.S_ISDIR(before):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    unfinished, file = _create_unfinished(directory)
    try:
        with os.fdopen(file, "wb") as stream:
            stream.write(content)
            os.fchmod(stream.fileno(), stat.S_IMODE(before) if before is not None and stat.S_ISREG(before) else 0o644)
        os.rename(unfinished, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        os.unlink(unfinished, dir_fd=directory)
        raise


def _create_unfinished(directory: int) -> tuple[str, int]:
    """Create a file with a free name. An action may have created any kind of file under any name."""
    for number in range(_MAX_UNFINISHED):
        name = f".tangram-unfinished-{number}"
        with suppress(FileExistsError):
            return name, os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory)
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), f".tangram-unfinished-{_MAX_UNFINISHED}")
