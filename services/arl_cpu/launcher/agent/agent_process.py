"""The process of a new agent: its file descriptors, its score for the out-of-memory killer and its imports."""

import fcntl
import os
import sys

__all__ = [
    "CHANNEL_FD",
    "NATIVE_FD",
    "OOM_SCORE_FD",
    "close_other_files",
    "disable_imports",
    "open_oom_score",
    "redirect_standard_files_to_null",
]

CHANNEL_FD = 3
NATIVE_FD = OOM_SCORE_FD = 4  # used one after the other


def close_other_files(channel: int, native: int | None) -> None:
    """Move the channel and the native program to their descriptors. Each may occupy the other's number first."""
    kept = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, NATIVE_FD + 1) for each in (channel, native) if each is not None]
    for number, file in enumerate(kept, CHANNEL_FD):
        os.dup2(file, number, inheritable=False)
    os.closerange(CHANNEL_FD + len(kept), os.sysconf("SC_OPEN_MAX"))


def redirect_standard_files_to_null() -> None:
    null = os.open("/dev/null", os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    if null > 2:
        os.close(null)


def open_oom_score() -> int:
    """Open the file before the isolation; afterwards the agent's uid may not open it."""
    return os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)


def disable_imports() -> None:
    """Import nothing from now on: programs may write the files at this interpreter's paths."""
    sys.path.clear()
    sys.path_importer_cache.clear()
