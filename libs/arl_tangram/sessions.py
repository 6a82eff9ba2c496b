"""Shells that stay open in a persistent environment: each command sees the changes of the previous ones."""

from typing import Unpack

from arl_tangram.client import AsyncTangram, Tangram
from arl_tangram.options import ExecOptions
from arl_wire.actions.action import Action
from arl_wire.environments.environment import EnvironmentInfo

__all__ = ["AsyncEnvironmentSession", "EnvironmentSession"]


class EnvironmentSession:
    """A named session. Its first command opens it."""

    def __init__(self, tangram: Tangram, environment: EnvironmentInfo, name: str = "main") -> None:
        self._tangram = tangram
        self._session_options: ExecOptions = {
            "task": environment.task,
            "environment_id": environment.id,
            "session": name,
        }

    def run(self, command: str, /, **options: Unpack[ExecOptions]) -> Action:
        """Run a command and return its outcome. `result.stdout` is the terminal output.

        `message` reports if the session started or ended.
        """
        return self._tangram.run(**_merge_options(self._session_options, options, command))

    def submit(self, command: str, /, **options: Unpack[ExecOptions]) -> Action:
        """Submit a command without waiting. Follow it with `stream`; with `stdin_open`, answer it with `send_input`."""
        return self._tangram.submit(**_merge_options(self._session_options, options, command))


class AsyncEnvironmentSession:
    """An asynchronous session. `EnvironmentSession` documents the methods."""

    def __init__(self, tangram: AsyncTangram, environment: EnvironmentInfo, name: str = "main") -> None:
        self._tangram = tangram
        self._session_options: ExecOptions = {
            "task": environment.task,
            "environment_id": environment.id,
            "session": name,
        }

    async def run(self, command: str, /, **options: Unpack[ExecOptions]) -> Action:
        return await self._tangram.run(**_merge_options(self._session_options, options, command))

    async def submit(self, command: str, /, **options: Unpack[ExecOptions]) -> Action:
        return await self._tangram.submit(**_merge_options(self._session_options, options, command))


def _merge_options(session_options: ExecOptions, options: ExecOptions, command: str) -> ExecOptions:
    return {**session_options, **options, "command": command}
