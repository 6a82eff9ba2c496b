"""The interfaces through which a sandbox notifies its owner and ends its workers."""

from typing import Any, Protocol

__all__ = ["SandboxOwner", "SandboxWorker"]


class SandboxOwner(Protocol):
    """The owner of a sandbox, notified of its state changes."""

    def created(self) -> None:
        """Handle the start of the agent."""
        ...

    def prepared(self) -> None:
        """Handle that the sandbox is ready for its sizes."""
        ...

    def message_received(self, message: dict[str, Any], files: list[int]) -> None:
        """Handle any other message of the agent."""
        ...

    def failed(self, message: str) -> None:
        """Handle a failure. The owner must end the sandbox."""
        ...

    def died(self) -> None:
        """Handle the end of pid 1, after which the kernel has ended all other processes in it."""
        ...


class SandboxWorker(Protocol):
    """A worker on the files of a sandbox, killed before the sandbox is removed."""

    def kill(self) -> None:
        """Kill the worker. It ends soon and is then removed from the sandbox."""
        ...
