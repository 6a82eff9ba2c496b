"""The interface that isolates an agent from inside, and the limits that a process sets on itself."""

import os
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from arl_cpu.launcher.linux.processes import ProcessInfo

__all__ = ["NICE_WITHOUT_CGROUP", "AgentSetup", "Isolation", "TemplateLayers", "apply_limits", "lower_priority"]

NICE_WITHOUT_CGROUP = 10
"""Difference of the nice values of actions and their agent, if no cgroup limits the actions."""

_OPEN_FILES = 4096

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class TemplateLayers:
    """The layers of an environment's template."""

    directory: str
    trees: tuple[str, ...]
    """Paths in the directory, highest first."""
    idmapped_mount: int | None = None
    """Mount of the directory in which the files belong to the environment's uid."""

    @classmethod
    def from_message(cls, message: Mapping[str, Any], files: Sequence[int]) -> "TemplateLayers | None":
        """Decode the layers from the launcher's message to an agent."""
        if (said := message.get("layers")) is None:
            return None
        return cls(said["directory"], tuple(said["trees"]), files[0] if files else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSetup:
    """The launcher's parameters for an agent, sent before it isolates itself."""

    workspace: str
    home: str
    """Home directory of the sandbox's user."""
    base_prefix: str
    memory_mib: int
    disk_mib: int
    pids: int
    keeps_processes: bool
    """True for a persistent environment, in which an action's remaining processes stay."""
    has_cgroup: bool
    """False if the agent itself must stop and continue processes, best effort."""
    watches_memory: bool
    """True if nothing else limits memory, so that the agent polls the sum."""
    host_id: int | None = None
    """uid to switch to if no user namespace provides one. None: keep the uid."""
    user: str | None = None
    """Default user of the environment. None: it has one user."""
    is_native: bool = False
    """True if the agent replaces itself with the C agent."""
    watches_files: bool = False
    """True if no file system limits the disk usage, so that the agent polls it."""

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> "AgentSetup":
        """Return the setup from the launcher's message."""
        return cls(**message)


class Isolation(Protocol):
    """The isolation that an agent applies to itself and to the actions of its environment."""

    confines_actions: bool
    """True if `confine_action` has an effect."""

    write_area: str
    """Path on the file system that limits all writes, if there is one. Set by `prepare` or `apply_setup`."""

    def prepare(self, base_prefix: str, layers: TemplateLayers | None) -> None:
        """Set up the part that is the same for all sandboxes of a template. Raises OSError if the host does not allow
        it.

        Layers are None for `host`, the only template of drivers without templates.
        """
        ...

    def apply_setup(self, setup: AgentSetup) -> None:
        """Set up the rest. This process cannot undo any of it."""
        ...

    def confine_action(self) -> None:
        """Confine the calling process, which is about to become an action."""
        ...

    def other_processes(self) -> list[ProcessInfo]:
        """Return every living process of the environment except the agent."""
        ...

    def signal_all(self, number: int) -> None:
        """Send a signal to every process of the environment except the agent."""
        ...

    def write_area_is_full(self) -> bool:
        """Return True if no more data can be written."""

    def write_area_used_bytes(self) -> int:
        """Return the bytes of the write area that count as memory."""

    def socket_bytes(self) -> int:
        """Return the bytes in socket queues, if they are the environment's own and polling must count them."""
        ...

    def exceeded_limit(self) -> str | None:
        """Return a limit that polling found exceeded, if nothing else enforces it."""
        ...


def apply_limits(setup: AgentSetup, *, processes: int) -> None:
    """Limit files always; limit this uid's `processes` only without a cgroup. Memory is watched, see `MemoryWatch`."""
    _set_limit(resource.RLIMIT_CORE, 0)
    _set_limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    if setup.has_cgroup:
        return
    _set_limit(resource.RLIMIT_NPROC, processes)


def lower_priority() -> None:
    """Lower the priority below the system's own processes. With a cgroup this is unnecessary."""
    os.nice(NICE_WITHOUT_CGROUP)


def _set_limit(kind: int, maximum: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = maximum if hard == resource.RLIM_INFINITY else min(maximum, hard)
    resource.setrlimit(kind, (value, value))
