"""The ways to confine an action, best first, and what sets them apart for whoever makes environments."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from . import landlock
from .landlock import Landlock
from .namespaces import Namespaces
from .unsafe_local import UnsafeLocal
from .walls import Walls

__all__ = ["AUTO", "DRIVERS", "FALLBACKS", "Driver"]

AUTO = "auto"
"""Not chosen: the first of `FALLBACKS` that works here."""
FALLBACKS = ("namespaces", "landlock")


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    name: str
    walls: Callable[[], Walls]
    zygote_unshares: bool = False
    """The process that forks agents makes their namespaces; else their walls do all of it."""
    ends_with_first: bool = False
    """The kernel ends all of an environment with its first process."""
    has_walls: bool = True
    has_templates: bool = False
    """Its walls can stand around another file tree than the host's."""
    needs_reachable_python: bool = False
    """Actions run the host's interpreter where it lies, under another uid."""
    problem: Callable[[], str | None] = lambda: None
    """Why there is no use in trying, if so."""
    fix: str = ""
    mechanisms: Mapping[str, str]


def _no_landlock() -> str | None:
    version = landlock.abi()
    if version == 0:
        return "the kernel has no Landlock, or does not use it (Linux 5.13 and `landlock` in its lsm= parameter)"
    if os.geteuid() != 0 and version < landlock.SCOPES_FROM:
        return f"Landlock ABI {version} cannot keep signals from this user's other processes (Linux 6.12, or root)"
    return None


_IN_NAMESPACES = {
    "files": "mount namespace",
    "net_isolation": "network namespace",
    "kill_tree": "pid namespace",
    "pids": "RLIMIT_NPROC in the user namespace",
    "disk_total": "tmpfs size",
}
_USER_NAMESPACES = (
    "Allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1 or "
    "kernel.apparmor_restrict_unprivileged_userns=0; in a container also an unmasked /proc)"
)

DRIVERS: Mapping[str, Driver] = {
    driver.name: driver
    for driver in (
        Driver(
            name="namespaces",
            walls=Namespaces,
            zygote_unshares=True,
            ends_with_first=True,
            has_templates=True,
            fix=_USER_NAMESPACES,
            mechanisms=_IN_NAMESPACES,
        ),
        Driver(
            name="landlock",
            walls=Landlock,
            needs_reachable_python=True,
            problem=_no_landlock,
            fix="Boot a kernel that uses Landlock",
            mechanisms={
                "files": "landlock",
                "net_isolation": "seccomp filter: no sockets",
                "kill_tree": "one signal to all in its Landlock scope, or of its uid",
                "pids": "RLIMIT_NPROC of its uid" if os.geteuid() == 0 else "a polled count",
                "disk_total": "a polled sum",
            },
        ),
        Driver(name="unsafe-local", walls=UnsafeLocal, has_walls=False, mechanisms={}),
    )
}
