"""Shells that stay open in a kept environment: what one command changes, the next one finds."""

from typing import Unpack

from arl_tangram.client import AsyncTangram, Tangram
from arl_tangram.options import ExecOptions
from arl_wire.actions.action import Action
from arl_wire.environments.environment import EnvironmentInfo

__all__ = ["AsyncEnvironmentSession", "EnvironmentSession"]


class EnvironmentSession:
    """One by name; it is opened by its first command."""

    def __init__(self, tangram: Tangram, environment: EnvironmentInfo, name: str = "main") -> None:
        self._tangram = tangram
        self._session_options: ExecOptions = {
            "task": environment.task,
            "environment_id": environment.id,
            "session": name,
        }

    def run(self, command: str, /, **options: Unpack[ExecOptions]) -> Action:
        """Its outcome; `result.stdout` is what the terminal showed. `message` says when the session began or ended."""
        return self._tangram.run(**_merge_options(self._session_options, options, command))

    def submit(self, command: str, /, **options: Unpack[ExecOptions]) -> Action:
        """Without waiting: to be followed by `stream`, and answered by `send_input` with `stdin_open`."""
        return self._tangram.submit(**_merge_options(self._session_options, options, command))


class AsyncEnvironmentSession:
    """An awaiting one. What each method does is said at `Session`."""

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
