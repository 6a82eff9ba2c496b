"""Access to a persistent environment beside its attempts: operations on its files, and sockets inside it."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

__all__ = ["EnvironmentSocketError", "FileOperation", "FileOperationError"]


class FileOperationError(Exception):
    """A failed file operation. The code is one of `arl_cpu.launcher.files.file_tree`, or `lost`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class EnvironmentSocketError(Exception):
    """A socket inside an environment that could not be created.

    The code is `lost`, `not_enforced` if environments have no network of their own, `no_family` if the host lacks the
    family of addresses, or `failed`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class FileOperation(Protocol):
    """A running operation on an environment's files. Every method raises ConnectionError if the operation was lost."""

    async def read_response(self) -> Mapping[str, Any]:
        """Return the next response. Raises FileOperationError if the operation was refused."""

    async def send(self, data: bytes) -> None:
        """Send input. Empty data marks its end."""

    def output(self) -> AsyncIterator[bytes]:
        """Yield the output to its end. Raises FileOperationError if the operation was refused."""
        ...

    async def close(self) -> None:
        """End the operation, finished or not. Returns after its worker has ended."""
