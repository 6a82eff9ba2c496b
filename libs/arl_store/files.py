"""Atomic replacement of small files: a reader sees the old or the new file, never a part."""

import os
from pathlib import Path

__all__ = ["replace_file"]


def replace_file(path: Path, text: str, *, mode: int = 0o600, durable: bool = True) -> None:
    """Replace the content of `path` by `text`. A `durable` file also survives a power failure."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.unlink(missing_ok=True)
    with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    unfinished.rename(path)
