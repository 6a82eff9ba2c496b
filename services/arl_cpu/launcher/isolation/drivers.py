"""The isolation drivers, best first, and their properties."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from arl_cpu.launcher.isolation import landlock
from arl_cpu.launcher.isolation.isolation import Isolation
from arl_cpu.launcher.isolation.landlock import LandlockIsolation
from arl_cpu.launcher.isolation.namespaces import NamespaceIsolation
from arl_cpu.launcher.isolation.unsafe_local import UnsafeLocalIsolation

__all__ = ["AUTO", "DRIVERS", "FALLBACKS", "IsolationDriver"]

AUTO = "auto"
"""Default of TANGRAM_DRIVER: use the first of `FALLBACKS` that works on this host."""
FALLBACKS = ("namespaces", "landlock")


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationDriver:
    """A driver: its isolation and its properties."""

    name: str
    isolation: Callable[[], Isolation]
    has_zygote_namespaces: bool = False
    """True if the zygote creates the namespaces of an agent; otherwise the isolation does all of the work."""
    dies_with_init: bool = False
    """True if the kernel ends all of an environment with its first process."""
    is_isolated: bool = True
    has_templates: bool = False
    """True if environments can use a file tree other than the host's."""
    needs_reachable_python: bool = False
    """True if actions run the host's interpreter at its path under another uid."""
    problem: Callable[[], str | None] = lambda: None
    """Function that returns why the driver cannot work on this host, or None."""
    fix: str = ""
    mechanisms: Mapping[str, str]


def _landlock_problem() -> str | None:
    version = landlock.landlock_abi()
    if version == 0:
        return (
            "the kernel has no Landlock, or does not enable it (needs Linux 5.13 and `landlock` in the lsm= parameter)"
        )
    if os.geteuid() != 0 and version < landlock.MIN_ABI_FOR_SCOPES:
        return f"Landlock ABI {version} cannot block signals to this user's other processes (needs Linux 6.12, or root)"
    return None


_NAMESPACE_MECHANISMS = {
    "files": "mount namespace",
    "net_isolation": "network namespace",
    "kill_tree": "pid namespace",
    "pids": "RLIMIT_NPROC in the user namespace",
    "disk_total": "tmpfs size",
}
_USER_NAMESPACE_FIX = (
    "Allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1 or "
    "kernel.apparmor_restrict_unprivileged_userns=0; in a container also an unmasked /proc)"
)

DRIVERS: Mapping[str, IsolationDriver] = {
    driver.name: driver
    for driver in (
        IsolationDriver(
            name="namespaces",
            isolation=NamespaceIsolation,
            has_zygote_namespaces=True,
            dies_with_init=True,
            has_templates=True,
            fix=_USER_NAMESPACE_FIX,
            mechanisms=_NAMESPACE_MECHANISMS,
        ),
        IsolationDriver(
            name="landlock",
            isolation=LandlockIsolation,
            needs_reachable_python=True,
            problem=_landlock_problem,
            fix="Boot a kernel with Landlock enabled",
            mechanisms={
                "files": "landlock",
                "net_isolation": "seccomp filter without sockets",
                "kill_tree": "one signal to its Landlock scope or its uid",
                "pids": "RLIMIT_NPROC of its uid" if os.geteuid() == 0 else "a polled count",
                "disk_total": "a polled sum",
            },
        ),
        IsolationDriver(name="unsafe-local", isolation=UnsafeLocalIsolation, is_isolated=False, mechanisms={}),
    )
}
