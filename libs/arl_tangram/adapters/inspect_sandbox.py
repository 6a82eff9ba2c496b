"""Inspect: the sandbox `tangram`, one environment of ARL-Tangram for each sample.

    Task(dataset=…, solver=…, sandbox=SandboxEnvironmentSpec("tangram", TangramSandboxConfig(template="py312")))

Inspect finds it by the entry point group `inspect_ai`. An infrastructure error is raised as `ActionFailed`. It ends the
sample with an error, and the sample has no score.
"""

import errno
from pathlib import Path
from typing import Any, Literal, overload

import yaml  # type: ignore[import-untyped]
from inspect_ai.util import (  # type: ignore[import-not-found]
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel, ConfigDict

from arl_tangram.adapters.environment_programs import AsyncEnvironmentPrograms
from arl_tangram.async_client import AsyncTangram

__all__ = ["TangramSandbox", "TangramSandboxConfig"]

NOT_EXECUTABLE = 126
"""Exit code of a program that exists and cannot be executed, as a shell reports it."""
MAX_TIMEOUT_S = 86400.0
OUTPUT_LIMIT = "1 MiB"
"""Size of an output that an action stores. Inspect's own limit is 10 MiB."""


class TangramSandboxConfig(BaseModel):
    """The configuration of a sandbox. A string in its place, as in `--sandbox tangram:FILE`, is a YAML file with it.

    The fields are options of `AsyncTangram.environment` and, for `cpu`, of `AsyncTangram.run`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    template: str | None = None
    task: str = "inspect"
    memory_mib: int = 2048
    disk_mib: int = 2048
    pids: int | None = None
    cpu: float = 1.0
    idle_ttl_s: int = 3600
    env: dict[str, str] = {}

    def __hash__(self) -> int:  # Inspect uses it as a key, and a dictionary has no hash
        return hash(self.model_dump_json())


@sandboxenv(name="tangram")
class TangramSandbox(SandboxEnvironment):  # type: ignore[misc]
    """A sandbox of Inspect. Between calls it has no cores."""

    def __init__(self, client: AsyncTangram, programs: AsyncEnvironmentPrograms) -> None:
        super().__init__()
        self._client = client
        self._programs = programs

    @classmethod
    async def sample_init(
        cls, task_name: str, config: BaseModel | str | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Create the environment of a sample."""
        del task_name, metadata
        chosen = _parse_config(config)
        client = AsyncTangram()
        try:
            given: dict[str, Any] = chosen.model_dump(exclude={"cpu"})
            environment = await client.environment(**given)
        except BaseException:
            await client.close()
            raise
        return {"default": cls(client, AsyncEnvironmentPrograms(environment, cpu=chosen.cpu))}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: BaseModel | str | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """End the environment of a sample."""
        del task_name, config, interrupted
        for sandbox in environments.values():
            own = sandbox.as_type(cls)
            async with own._client, own._programs.environment:
                pass

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Return the configuration that a log contains."""
        return TangramSandboxConfig.model_validate(config)

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,  # noqa: A002 - Inspect passes it by this name
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult:
        """Run a command. Raises `TimeoutError`, `PermissionError` and `OutputLimitExceededError` as Inspect defines."""
        del timeout_retry, concurrency
        options = {"user": user} if user is not None else {}
        output = await self._programs.run(
            cmd, cwd=cwd, stdin=input, env=env or {}, timeout_s=float(timeout or MAX_TIMEOUT_S), **options
        )
        if user is not None and not output.has_run:
            raise SandboxUserUnsupportedError(output.reason)
        if output.timed_out:
            raise TimeoutError(f"the command took longer than {timeout or MAX_TIMEOUT_S:g} s")
        stdout, stderr = _text(output.stdout), _text(output.stderr)
        if output.exit_code == NOT_EXECUTABLE:
            raise PermissionError(errno.EACCES, output.action.message or stderr.strip(), cmd[0])
        if output.truncated:
            raise OutputLimitExceededError(OUTPUT_LIMIT, f"{stdout}{stderr}")
        return ExecResult(output.exit_code == 0, output.exit_code, stdout, output.stderr_with_reason())

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file and create its parent directories. Raises the errors that Inspect defines."""
        await self._programs.write(file, contents.encode() if isinstance(contents, str) else contents)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Return the content of a file. Raises the errors that Inspect defines."""
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        try:
            content = await self._programs.read(file, max_bytes=limit)
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None) from None
        return content.decode() if text else content


def _parse_config(config: BaseModel | str | None) -> TangramSandboxConfig:
    if isinstance(config, str):
        return TangramSandboxConfig.model_validate(yaml.safe_load(Path(config).read_text()) or {})
    return TangramSandboxConfig.model_validate(config.model_dump()) if config is not None else TangramSandboxConfig()


def _text(content: bytes) -> str:
    return content.decode(errors="replace")
