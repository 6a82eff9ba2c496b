"""The names of the sandbox's user and group in an image. Programs look them up by their ids."""

import os
import stat
from contextlib import suppress

__all__ = ["add_accounts", "add_root"]

_ID = b"1000"
_NAMES = (b"sandbox", b"sandbox1000")
"""Names of the user and its group. The second is for an image that gives the first to another user."""
_SHELLS = ("/bin/bash", "/bin/sh")
_ROOT_USER, _ROOT_GROUP = b"root:x:0:0:root:/root:/bin/sh\n", b"root:x:0:\n"
_MAX_BYTES = 1 << 20


def add_accounts(home: str) -> None:
    """Add the names that the image lacks. Call it when the image is the root directory.

    An image whose files cannot be changed stays as it is.
    """
    shell = next((path for path in _SHELLS if os.path.exists(path)), "/bin/sh")
    place = "/" if set(home) & {":", "\n"} else home
    with suppress(OSError):
        _add_entry("/etc/passwd", os.fsencode(f":x:1000:1000::{place}:{shell}\n"), _ROOT_USER)
    with suppress(OSError):
        _add_entry("/etc/group", b":x:1000:\n", _ROOT_GROUP)


def add_root() -> None:
    """Name root in an image without files of accounts. Call it when the image is the root directory."""
    for path, row in (("/etc/passwd", _ROOT_USER), ("/etc/group", _ROOT_GROUP)):
        with suppress(OSError):
            if _read(path) is None:
                os.makedirs("/etc", exist_ok=True)
                with open(path, "xb") as file:
                    file.write(row)


def _add_entry(path: str, rest: bytes, first: bytes) -> None:
    """Append an entry unless one with its id exists. A new file begins with `first`."""
    content = _read(path)
    rows = [line.split(b":") for line in (content or first).splitlines()]
    if any(len(row) > 2 and row[2] == _ID for row in rows):
        return
    name = next((name for name in _NAMES if all(row[0] != name for row in rows)), _NAMES[-1])
    before = first if content is None else b"" if content.endswith(b"\n") or not content else b"\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(file, before + name + rest)
    finally:
        os.close(file)


def _read(path: str) -> bytes | None:
    """Return the content of a regular file, or None if it does not exist. Raises OSError for anything else."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(f"{path} is not a file")
        return os.read(file, _MAX_BYTES)
    finally:
        os.close(file)
