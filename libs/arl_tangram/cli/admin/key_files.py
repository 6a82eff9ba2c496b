"""Files with a key that is being created. A repeated command creates the same key in the cells that do not have it."""

import os
import secrets
from pathlib import Path

from arl_tangram.cli.output import EXIT_USAGE, fail

__all__ = ["read_or_draw_key", "remove_unfinished_key", "save_unfinished_key"]

SECRET_BYTES = 32
MAX_FILE_BYTES = 1024
UNFINISHED_NAME = "unfinished_key"


def read_or_draw_key(path: Path | None) -> str:
    """Return the key in the file. Without a file, draw a key; if the file does not exist, write the new key to it."""
    drawn = f"tk_{secrets.token_urlsafe(SECRET_BYTES)}"
    if path is None:
        return drawn
    try:
        _write_key(path, drawn, flags=os.O_EXCL)
    except FileExistsError:
        pass
    except OSError as error:
        fail(f"--key-file {path}: {error.strerror}", EXIT_USAGE)
    else:
        return drawn
    try:
        with path.open() as file:
            return file.read(MAX_FILE_BYTES).strip()
    except (OSError, UnicodeDecodeError):
        fail(f"--key-file {path}: the file cannot be read as text", EXIT_USAGE)


def save_unfinished_key(directory: Path, key: str) -> Path:
    """Write a key whose creation failed to the state directory, readable by its owner only. Return the file."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory.absolute() / UNFINISHED_NAME
    path.unlink(missing_ok=True)
    _write_key(path, key, flags=os.O_EXCL)
    return path


def remove_unfinished_key(directory: Path, path: Path) -> None:
    """Remove the file of `save_unfinished_key` after the key was created. A file of the user's own stays."""
    if path.absolute() == directory.absolute() / UNFINISHED_NAME:
        path.unlink(missing_ok=True)


def _write_key(path: Path, key: str, *, flags: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600), "w") as file:
        file.write(f"{key}\n")
