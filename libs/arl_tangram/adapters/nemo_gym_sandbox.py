"""NeMo Gym: the sandbox provider `tangram`, which NeMo Gym finds by its entry point.

    sandbox:
      tangram: {task: swe, template: py312}

An infrastructure error has no exit code: `error_type` is `sandbox` and `return_code` 125. An agent that masks such
rollouts reads `error_type`.
"""

from pathlib import Path
from typing import Any

from nemo_gym.sandbox.providers.base import (  # type: ignore[import-not-found]
    SandboxCreateError,
    SandboxExecResult,
    SandboxHandle,
    SandboxSpec,
    SandboxStatus,
)

from arl_tangram.adapters.environment_programs import AsyncEnvironmentPrograms
from arl_tangram.async_client import AsyncTangram
from arl_tangram.operations import ActionFailed
from arl_wire.environments.environment import EnvironmentState
from arl_wire.errors import Conflict, NotFound, TangramError

__all__ = ["TangramSandboxProvider"]

SANDBOX_FAILED = 125
"""Exit code that NeMo Gym's own providers return for a failure of the sandbox, with `error_type`."""
TIMED_OUT = 124
MAX_TIMEOUT_S = 86400.0
DEFAULT_TTL_S = 3600
MIB_PER_GIB = 1024
STATUSES = {
    EnvironmentState.LIVE: SandboxStatus.RUNNING,
    EnvironmentState.ENDING: SandboxStatus.STOPPED,
    EnvironmentState.ENDED: SandboxStatus.STOPPED,
    EnvironmentState.LOST: SandboxStatus.ERROR,
}


class TangramSandboxProvider:
    """A sandbox provider of NeMo Gym. Between commands, a sandbox has no cores.

    The options are those of `AsyncTangram.environment`, for example `task`, `template` and `memory_mib`, and `url` and
    `api_key`. A `SandboxSpec` takes precedence: `image` is the template, `resources` are the sizes and the cores of
    each command, `ttl_s` is `idle_ttl_s`, and `provider_options` are further options.
    """

    name = "tangram"

    def __init__(self, *, url: str | None = None, api_key: str | None = None, **options: Any) -> None:
        self._client = AsyncTangram(url, api_key)
        self._options: dict[str, Any] = {"task": "nemo-gym", "idle_ttl_s": DEFAULT_TTL_S, **options}

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Create an environment, which exists afterwards. Raises `SandboxCreateError`."""
        if spec.resources.gpu:
            raise SandboxCreateError("An environment has no GPU: remove resources.gpu")
        disk = spec.resources.disk_gib
        wanted = {
            "template": spec.image,
            "memory_mib": spec.resources.memory_mib,
            "disk_mib": disk * MIB_PER_GIB if disk is not None else None,
            "idle_ttl_s": int(spec.ttl_s) if spec.ttl_s is not None else None,
            "env": spec.env or None,
        }
        given = {**self._options, **{name: value for name, value in wanted.items() if value is not None}}
        given |= spec.provider_options
        try:
            environment = await self._client.environment(**given, wait_timeout_s=spec.ready_timeout_s)
        except TangramError as error:
            raise SandboxCreateError(f"{error.code}: {error.detail}") from error
        programs = AsyncEnvironmentPrograms(environment, cpu=float(spec.resources.cpu or 1))
        return SandboxHandle(str(environment.id), self.name, programs)

    async def exec(
        self,
        handle: SandboxHandle,
        command: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: float | None = None,
        user: str | int | None = None,
    ) -> SandboxExecResult:
        """Run a shell command as one action. A timeout and an infrastructure error have an `error_type`."""
        options = {"user": str(user)} if user is not None else {}
        try:
            output = await _programs(handle).run(
                ["/bin/sh", "-c", command],
                cwd=cwd,
                env=env or {},
                timeout_s=float(timeout_s or MAX_TIMEOUT_S),
                **options,
            )
        except ActionFailed as error:
            return SandboxExecResult(None, str(error), SANDBOX_FAILED, "sandbox")
        except TangramError as error:
            if error.status < 500 and not isinstance(error, (Conflict, NotFound)):
                raise
            return SandboxExecResult(None, f"{error.code}: {error.detail}", SANDBOX_FAILED, "sandbox")
        if user is not None and not output.has_run:
            return SandboxExecResult(None, output.reason, SANDBOX_FAILED, "sandbox")
        stdout, stderr = output.stdout.decode(errors="replace"), output.stderr_with_reason()
        if output.timed_out:
            return SandboxExecResult(stdout, stderr, TIMED_OUT, "timeout")
        return SandboxExecResult(stdout, stderr, output.exit_code)

    async def upload_file(self, handle: SandboxHandle, source_path: Path, target_path: str) -> None:
        """Copy a local file into the environment."""
        await _programs(handle).write(target_path, source_path.read_bytes())

    async def download_file(self, handle: SandboxHandle, source_path: str, target_path: Path) -> None:
        """Copy a file of the environment to this machine."""
        content = await _programs(handle).read(source_path)
        target_path.parent.mkdir(parents=True, exist_ok=True)
        target_path.write_bytes(content)

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        """Return the state of the environment."""
        try:
            found = await self._client.get_environment(_programs(handle).environment.id)
        except NotFound:
            return SandboxStatus.STOPPED
        except TangramError:
            return SandboxStatus.UNKNOWN
        return STATUSES[found.info.state]

    async def close(self, handle: SandboxHandle) -> None:
        """End the environment. A second call has no effect."""
        try:
            await _programs(handle).environment.end()
        except (Conflict, NotFound):
            return

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()


def _programs(handle: SandboxHandle) -> AsyncEnvironmentPrograms:
    programs: AsyncEnvironmentPrograms = handle.raw
    return programs
