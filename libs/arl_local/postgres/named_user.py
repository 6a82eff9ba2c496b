"""A hook that lets initdb run as a uid without a user name, as is common in containers. Initdb requires a name."""

import ctypes
import os
import pwd
from collections.abc import Callable

__all__ = ["named_user_hook"]

_CLONE_NEWUSER = 0x10000000
_libc = ctypes.CDLL(None, use_errno=True)


def named_user_hook() -> Callable[[], None] | None:
    """Return a hook that gives a child's uid a name before exec, or None if the uid has one.

    In a user namespace the uid gets the name of another user; files still belong to the real uid.
    """
    if os.geteuid() == 0 or _has_name(os.geteuid()):
        return None
    named = next(entry for entry in pwd.getpwall() if entry.pw_uid != 0)
    uids = f"{named.pw_uid} {os.geteuid()} 1"
    gids = f"{named.pw_gid} {os.getegid()} 1"

    def enter() -> None:
        if _libc.unshare(_CLONE_NEWUSER) != 0:
            raise OSError(ctypes.get_errno(), "this uid has no name, and user namespaces are not available")
        for name, content in (("setgroups", "deny"), ("gid_map", gids), ("uid_map", uids)):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(content)

    return enter


def _has_name(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True
