"""What surrounds an agent, seen from inside."""

from dataclasses import dataclass
from typing import Any, Protocol

from .processes import Process

__all__ = ["Setup", "Walls"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What an agent is told before it raises its walls."""

    workspace: str
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
    watches_files: bool = False
    """No file system bounds what is written, so the agent looks from time to time."""

    @classmethod
    def of(cls, message: dict[str, Any]) -> "Setup":
        return cls(**message)


class Walls(Protocol):
    enters: bool
    """Whether `enter` does anything."""

    def prepare(self, base_prefix: str) -> None:
        """Raise what is the same for everybody. Raises OSError where the host does not allow it."""
        ...

    def bind(self, setup: Setup) -> None:
        """Raise the rest; from here on this process may undo none of it."""
        ...

    def enter(self) -> None:
        """Called in each process that is about to become an action."""
        ...

    def others(self) -> list[Process]:
        """Every living process of the environment but the agent."""
        ...

    def signal_all(self, number: int) -> None:
        """Signal every process of the environment but the agent."""
        ...

    def write_area_is_full(self) -> bool: ...

    def write_area_used_bytes(self) -> int: ...

    def exceeded(self) -> str | None:
        """The limit that was found passed by looking, where nothing else holds it."""
        ...
