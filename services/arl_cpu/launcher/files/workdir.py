"""Where environments keep their files when no file system of their own holds them."""

import os
import stat
from pathlib import Path

__all__ = ["create", "create_root", "remove", "root_path", "temporary_path", "workspace_path"]

_TEMPORARY_NAME = "tmp"
_ROOT_DIRECTORY = Path("/var/lib/tangram")


def root_path(directory: Path, suffix: int, *, own_uids: bool) -> Path:
    """Below the launcher's directory, unless other uids could not get there."""
    if not own_uids:
        return directory / "work"
    return _ROOT_DIRECTORY / f"work.{suffix:08x}"


def create_root(root: Path) -> None:
    """Empty, and open to be passed through where it lies outside the launcher's own directory."""
    if root.parent == _ROOT_DIRECTORY:
        _ROOT_DIRECTORY.mkdir(mode=0o755, parents=True, exist_ok=True)
    remove(root)
    os.mkdir(root, 0o711 if root.parent == _ROOT_DIRECTORY else 0o700)


def workspace_path(area: Path) -> str:
    return str(area / "workspace")


def temporary_path(workspace: str) -> str:
    return f"{os.path.dirname(workspace)}/{_TEMPORARY_NAME}"


def create(area: Path, host_id: int | None) -> str:
    """A workspace and a directory for temporary files, of that uid and closed to all others."""
    if area.exists():
        remove(area)  # of an earlier life
    os.mkdir(area, 0o700)
    for name in ("workspace", _TEMPORARY_NAME):
        os.mkdir(area / name, 0o700)
        if host_id is not None:
            os.chown(area / name, host_id, host_id)
    if host_id is not None:
        os.chown(area, host_id, host_id)
    return workspace_path(area)


def remove(tree: Path) -> None:
    """However deep it is and whatever its directories forbid. Nothing may be at work in it any more."""
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
    """Directories found are moved up, next to those still to be emptied: depth costs nothing."""
    moved = 0
    while directories := _unlink_files(top):
        for name in directories:
            below = _open_directory(name, top)
            try:
                for child in _unlink_files(below):
                    os.close(_open_directory(child, below))  # only a directory that may be written can be moved
                    os.rename(child, f".{moved}", src_dir_fd=below, dst_dir_fd=top)
                    moved += 1
            finally:
                os.close(below)
            os.rmdir(name, dir_fd=top)


def _unlink_files(directory: int) -> list[str]:
    """The directories that remain."""
    with os.scandir(directory) as found:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
    for name, is_directory in entries:
        if not is_directory:
            os.unlink(name, dir_fd=directory)
    return [name for name, is_directory in entries if is_directory]


def _open_directory(name: str, parent: int | None) -> int:
    """Make it writable to its owner first, whom no mode that an action set may stop."""
    if stat.S_IMODE(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode) & 0o700 != 0o700:
        os.chmod(name, 0o700, dir_fd=parent)
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
