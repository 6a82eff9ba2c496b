"""Users of a sandbox. A daemon that is root acts as the user of each request; another daemon has only its own user."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from arl_gateway.compat.e2b.guest.file_operations import GuestError

__all__ = ["Account", "acting_as", "default_account", "find_account"]

DEFAULT_NAME = "user"
"""Name that E2B's clients give the default user."""


@dataclass(frozen=True)
class Account:
    """A user and its home directory."""

    name: str
    uid: int
    gid: int
    home: str

    def variables(self) -> dict[str, str]:
        """Return the variables that every process of the user has."""
        return {**os.environ, "HOME": self.home, "USER": self.name, "LOGNAME": self.name, "E2B_SANDBOX": "true"}

    def start_options(self) -> dict[str, Any]:
        """Return the arguments with which `subprocess.Popen` starts a program of the user."""
        if os.getuid() != 0 or self.uid == 0:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": self.groups()}

    def groups(self) -> list[int]:
        """Return the groups of the user."""
        return os.getgrouplist(self.name, self.gid)


def default_account(home: str, directory: str = ".") -> Account:
    """Return the owner of the daemon's files, which is the default user of the sandbox's template."""
    found = os.stat(directory)
    return Account(_name_of(found.st_uid), found.st_uid, found.st_gid, home)


def find_account(user: str, default: Account) -> Account:
    """Find a user by its name or uid. Raises GuestError."""
    if user in ("", default.name, str(default.uid)):
        return default
    try:
        found = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
    except (KeyError, OverflowError):
        if user == DEFAULT_NAME:
            return default
        raise GuestError("unauthenticated", f"user '{user[:64]}' does not exist in the sandbox") from None
    if os.getuid() not in (0, found.pw_uid):
        message = f"not supported by this server: user '{user}'. Commands run as user '{default.name}'"
        raise GuestError("unimplemented", message)
    return Account(found.pw_name, found.pw_uid, found.pw_gid, found.pw_dir or "/")


@contextmanager
def acting_as(account: Account) -> Iterator[None]:
    """Let this process act as the user. The daemon has one thread."""
    if os.getuid() != 0 or account.uid == 0:
        yield
        return
    os.setgroups(account.groups())
    os.setegid(account.gid)
    os.seteuid(account.uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups([])


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
