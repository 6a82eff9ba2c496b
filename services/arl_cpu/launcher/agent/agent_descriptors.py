"""The file descriptors of a new agent."""

import fcntl
import os

__all__ = ["CHANNEL_FD", "NATIVE_FD", "OOM_SCORE_FD", "close_other_files", "redirect_standard_files_to_null"]

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
