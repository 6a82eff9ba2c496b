"""Shells that stay open in a persistent environment: each command sees the changes of the previous ones."""

from typing import Protocol, Unpack

from arl_tangram.options import ExecOptions
from arl_wire.actions.action import Action
from arl_wire.environments.environment import EnvironmentInfo

__all__ = ["AsyncEnvironmentSession", "EnvironmentSession"]


class SessionClient(Protocol):
    """The methods of `Tangram` that a session uses."""

    def run(self, *, wait_timeout_s: float | None = None, **options: Unpack[ExecOptions]) -> Action: ...
    def submit(self, **options: Unpack[ExecOptions]) -> Action: ...


class AsyncSessionClient(Protocol):
    """The methods of `AsyncTangram` that a session uses."""

    async def run(self, *, wait_timeout_s: float | None = None, **options: Unpack[ExecOptions]) -> Action: ...
    async def submit(self, **options: Unpack[ExecOptions]) -> Action: ...


class EnvironmentSession:
    """A shell that stays open in an environment. Its first command opens it."""

    def __init__(self, tangram: SessionClient, environment: EnvironmentInfo, name: str = "main") -> None:
        self._tangram = tangram
        self._session_options: ExecOptions = {
            "task": environment.task,
            "environment_id": environment.id,
            "session": name,
        }

    def run(self, command: str, /, *, wait_timeout_s: float | None = None, **options: Unpack[ExecOptions]) -> Action:
        """Run a command and return its action. `stdout` is the output of the terminal.

        `message` reports whether the session started or ended.
        """
        return self._tangram.run(
            wait_timeout_s=wait_timeout_s, **_merge_options(self._session_options, options, command)
        )

    def submit(self, command: str, /, **options: Unpack[ExecOptions]) -> Action:
        """Submit a command without waiting. `follow` shows its output; `send_input` answers it."""
        return self._tangram.submit(**_merge_options(self._session_options, options, command))


class AsyncEnvironmentSession:
    """The asynchronous form of `EnvironmentSession`."""

    def __init__(self, tangram: AsyncSessionClient, environment: EnvironmentInfo, name: str = "main") -> None:
        self._tangram = tangram
        self._session_options: ExecOptions = {
            "task": environment.task,
            "environment_id": environment.id,
            "session": name,
        }

    async def run(
        self, command: str, /, *, wait_timeout_s: float | None = None, **options: Unpack[ExecOptions]
    ) -> Action:
        """Run a command and return its action. `stdout` is the output of the terminal.

        `message` reports whether the session started or ended.
        """
        return await self._tangram.run(
            wait_timeout_s=wait_timeout_s, **_merge_options(self._session_options, options, command)
        )

    async def submit(self, command: str, /, **options: Unpack[ExecOptions]) -> Action:
        """Submit a command without waiting. `follow` shows its output; `send_input` answers it."""
        return await self._tangram.submit(**_merge_options(self._session_options, options, command))


def _merge_options(session_options: ExecOptions, options: ExecOptions, command: str) -> ExecOptions:
    return {**options, **session_options, "command": command}
