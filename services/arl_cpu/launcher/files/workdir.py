"""Directories for the files of environments without a separate file system."""

import os
import stat
from pathlib import Path

__all__ = ["create", "create_root", "remove", "root_path", "temporary_path", "workspace_path"]

_TEMPORARY_NAME = "tmp"
_ROOT_DIRECTORY = Path("/var/lib/tangram")


def root_path(directory: Path, suffix: int, *, own_uids: bool) -> Path:
    """Return a path below the launcher's directory, unless other uids could not reach it."""
    if not own_uids:
        return directory / "work"
    return _ROOT_DIRECTORY / f"work.{suffix:08x}"


def create_root(root: Path) -> None:
    """Create an empty root. Outside the launcher's directory other uids may traverse it."""
    if root.parent == _ROOT_DIRECTORY:
        _ROOT_DIRECTORY.mkdir(mode=0o755, parents=True, exist_ok=True)
    remove(root)
    os.mkdir(root, 0o711 if root.parent == _ROOT_DIRECTORY else 0o700)


def workspace_path(area: Path) -> str:
    """Return the path of the working directory in a write area."""
    return str(area / "workspace")


def temporary_path(workspace: str) -> str:
    """Return the path of the temporary directory next to a working directory."""
    return f"{os.path.dirname(workspace)}/{_TEMPORARY_NAME}"


def create(area: Path, host_id: int | None) -> str:
    """Create a workspace and a temporary directory that only this uid may access."""
    if area.exists():
        remove(area)  # from an earlier launcher
    os.mkdir(area, 0o700)
    for name in ("workspace", _TEMPORARY_NAME):
        os.mkdir(area / name, 0o700)
        if host_id is not None:
            os.chown(area / name, host_id, host_id)
    if host_id is not None:
        os.chown(area, host_id, host_id)
    return workspace_path(area)


def remove(tree: Path) -> None:
    """Remove a tree of any depth and with any directory modes. No process may use it any more."""
    try:
        top = _open_directory(str(tree), None)
    except FileNotFoundError:
        return
    try:
        _empty_directory(top)
    finally:
        os.close(top)
    os.rmdir(tree)


def _empty_directory(top: int) -> None:
    """Empty a directory. Subdirectories are moved up to the top, so that the depth does not matter."""
    moved = 0
    while directories := _unlink_files(top):
        for name in directories:
            below = _open_directory(name, top)
            try:
                for child in _unlink_files(below):
                    os.close(_open_directory(child, below))  # only a writable directory can be moved
                    os.rename(child, f".{moved}", src_dir_fd=below, dst_dir_fd=top)
                    moved += 1
            finally:
                os.close(below)
            os.rmdir(name, dir_fd=top)


def _unlink_files(directory: int) -> list[str]:
    """Unlink the files and return the names of the remaining directories."""
    with os.scandir(directory) as found:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
    for name, is_directory in entries:
        if not is_directory:
            os.unlink(name, dir_fd=directory)
    return [name for name, is_directory in entries if is_directory]


def _open_directory(name: str, parent: int | None) -> int:
    """Open a directory and first restore the owner's access, which an action may have removed."""
    if stat.S_IMODE(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode) & 0o700 != 0o700:
        os.chmod(name, 0o700, dir_fd=parent)
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
