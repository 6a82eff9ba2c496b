"""The isolation of an agent, seen from inside, and the limits that a process sets on itself."""

import os
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from arl_cpu.launcher.linux.processes import ProcessInfo

__all__ = ["AgentSetup", "Isolation", "TemplateLayers", "apply_limits", "lower_priority"]

_NICE_WITHOUT_CGROUP = 10

_OPEN_FILES = 4096

_MIB = 1 << 20

_MIN_FILE_MIB = 16


@dataclass(frozen=True, slots=True)
class TemplateLayers:
    """Of the template that an environment begins with."""

    directory: str
    trees: tuple[str, ...]
    """Paths in the directory, the highest first."""
    idmapped_mount: int | None = None
    """A mount of the directory in which the files are the environment's own."""

    @classmethod
    def from_message(cls, message: Mapping[str, Any], files: Sequence[int]) -> "TemplateLayers | None":
        """As the launcher says it to an agent."""
        if (said := message.get("layers")) is None:
            return None
        return cls(said["directory"], tuple(said["trees"]), files[0] if files else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSetup:
    """What an agent is told before it raises its walls."""

    workspace: str
    is_host: bool
    """Of the template `host`: the interpreter that the agent itself runs in can be seen."""
    base_prefix: str
    memory_mib: int
    disk_mib: int
    pids: int
    keeps_processes: bool
    """A persistent environment: what an action leaves behind stays."""
    has_cgroup: bool
    """Where there is none, the agent itself stops and continues processes as well as it can."""
    watches_memory: bool
    """Nobody else limits it: the agent looks at the sum from time to time."""
    host_id: int | None = None
    """The uid to become where no user namespace gives one; None: stay who it is."""
    is_native: bool = False
    """The agent shall become the one in C."""
    watches_files: bool = False
    """No file system bounds what is written, so the agent looks from time to time."""

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> "AgentSetup":
        return cls(**message)


class Isolation(Protocol):
    confines_actions: bool
    """Whether `enter` does anything."""

    write_area: str
    """A place on what bounds all that is written, if anything does; told with the rest of the walls."""

    def prepare(self, base_prefix: str, layers: TemplateLayers | None) -> None:
        """Raise what is the same for all with this template. Raises OSError where the host does not allow it.

        Without layers it is `host`, which is all that drivers without templates are asked for.
        """
        ...

    def apply_setup(self, setup: AgentSetup) -> None:
        """Raise the rest; from here on this process may undo none of it."""
        ...

    def confine_action(self) -> None:
        """Called in each process that is about to become an action."""
        ...

    def other_processes(self) -> list[ProcessInfo]:
        """Every living process of the environment but the agent."""
        ...

    def signal_all(self, number: int) -> None:
        """Signal every process of the environment but the agent."""
        ...

    def write_area_is_full(self) -> bool: ...

    def write_area_used_bytes(self) -> int: ...

    def exceeded_limit(self) -> str | None:
        """The limit that was found passed by looking, where nothing else holds it."""
        ...


def apply_limits(setup: AgentSetup, *, processes: int) -> None:
    """Files in any case; memory and `processes` of this uid only where no cgroup looks after them."""
    _set_limit(resource.RLIMIT_CORE, 0)
    _set_limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    _set_limit(resource.RLIMIT_FSIZE, max(setup.disk_mib, _MIN_FILE_MIB) * _MIB)
    if setup.has_cgroup:
        return
    _set_limit(resource.RLIMIT_NPROC, processes)
    # Private writable memory only: address space would count what a runtime merely reserves.
    _set_limit(resource.RLIMIT_DATA, setup.memory_mib * _MIB)


def lower_priority() -> None:
    """To this system's own processes; where a cgroup shares the cores out it is not needed."""
    os.nice(_NICE_WITHOUT_CGROUP)


def _set_limit(kind: int, maximum: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = maximum if hard == resource.RLIM_INFINITY else min(maximum, hard)
    resource.setrlimit(kind, (value, value))
