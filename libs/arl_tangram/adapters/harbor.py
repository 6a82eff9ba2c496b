"""Harbor: an environment class for `harbor run --env arl_tangram.adapters.harbor:HarborEnvironment`.

A task needs `docker_image` in `[environment]`, or the option `template` (`--ek template=NAME`): nothing is built from a
Dockerfile. An infrastructure error is raised as `RuntimeRequestError`, so the trial has an exception and no reward.
"""

from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from harbor.environments.base import BaseEnvironment, ExecResult  # type: ignore[import-not-found]
from harbor.environments.capabilities import (  # type: ignore[import-not-found]
    EnvironmentCapabilities,
    EnvironmentResourceCapabilities,
)
from harbor.environments.options import EnvironmentOptions  # type: ignore[import-not-found]

from arl_tangram.adapters.environment_programs import AsyncEnvironmentPrograms
from arl_tangram.async_client import AsyncTangram
from arl_tangram.operations import ActionFailed
from arl_wire.errors import Conflict, NotFound, TangramError

__all__ = ["HarborEnvironment", "HarborOptions"]

DEFAULT_MEMORY_MIB = 2048
DEFAULT_DISK_MIB = 4096
MAX_TIMEOUT_S = 86400


class RuntimeRequestError(RuntimeError):
    """A failure of the infrastructure.

    Harbor decides by the name of an exception class. It retries a trial with this one, and neither grades it nor counts
    its reward. After an exception of an unknown class, it grades the trial.
    """


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _report_infrastructure(
    method: Callable[Parameters, Awaitable[Result]],
) -> Callable[Parameters, Coroutine[Any, Any, Result]]:
    """Raise infrastructure errors as `RuntimeRequestError`."""

    @wraps(method)
    async def reporting(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return await method(*args, **kwargs)
        except ActionFailed as error:
            raise RuntimeRequestError(str(error)) from error
        except TangramError as error:
            if error.status < 500 and not isinstance(error, (Conflict, NotFound)):
                raise
            raise RuntimeRequestError(f"{error.code}: {error.detail}") from error

    return reporting


class HarborOptions(EnvironmentOptions):  # type: ignore[misc]
    """The options of `--ek NAME=VALUE`.

    `template`: initial content in place of the task's `docker_image`. `task`: name of the workload. `idle_ttl_s`:
    seconds without a command after which the environment ends. `url`: address of the gateway; else TANGRAM_URL.
    """

    template: str | None = None
    task: str = "harbor"
    idle_ttl_s: int = 7200
    pids: int | None = None
    url: str | None = None


class HarborEnvironment(BaseEnvironment):  # type: ignore[misc]
    """An environment of Harbor. Between commands it has no cores.

    `cpus` of a task are the cores of each command, `memory_mb` and `storage_mb` the sizes of the environment.
    """

    options_model = HarborOptions

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Prepare an environment; Harbor passes the arguments of its base class."""
        super().__init__(*args, **kwargs)
        self._client: AsyncTangram | None = None
        self._programs: AsyncEnvironmentPrograms | None = None

    @staticmethod
    def type() -> str:
        """Return the name in results."""
        return "tangram"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """Return the features of an environment. It has no network."""
        return EnvironmentCapabilities(disable_internet=True)

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """Return the resources that are enforced."""
        return EnvironmentResourceCapabilities(
            cpu_limit=True, cpu_request=True, memory_limit=True, memory_request=True, fractional_cpus=True
        )

    def _validate_definition(self) -> None:
        if not self._template:
            raise ValueError(
                "No Dockerfile is built. Set docker_image in [environment] of task.toml, or --ek template=NAME"
            )

    @property
    def _template(self) -> str | None:
        chosen: str | None = self.options.template or self.task_env_config.docker_image
        return chosen

    @_report_infrastructure
    async def start(self, force_build: bool) -> None:
        """Create the environment and the directories of Harbor. A build is never needed."""
        del force_build
        if self._network_is_public:
            self.logger.warning("The task may use the network, and an environment of ARL-Tangram has none")
        self._client = AsyncTangram(self.options.url)
        given: dict[str, Any] = {
            "task": self.options.task,
            "trajectory": self.session_id,
            "template": self._template,
            "memory_mib": self._effective_memory_mb or DEFAULT_MEMORY_MIB,
            "disk_mib": self._effective_storage_mb or DEFAULT_DISK_MIB,
            "pids": self.options.pids,
            "idle_ttl_s": self.options.idle_ttl_s,
            "env": self._startup_env(),
        }
        environment = await self._client.environment(**given)
        cores = float(self._effective_cpus or 1)
        self._programs = AsyncEnvironmentPrograms(environment, cpu=(cores, cores))
        created = await self.ensure_dirs(self._mount_targets(writable_only=True))
        if created is not None and created.return_code != 0:
            raise RuntimeError(f"The directories of Harbor cannot be created in the image: {created.stderr}")
        await self._upload_environment_dir_after_start()

    async def stop(self, delete: bool) -> None:
        """End the environment. Without `delete` it ends after `idle_ttl_s`. A second call has no effect."""
        client, programs = self._client, self._programs
        self._client = self._programs = None
        try:
            if delete and programs is not None:
                await programs.environment.end()
        except (Conflict, NotFound):
            self.logger.warning("The environment had ended before")
        finally:
            if client is not None:
                await client.close()

    @_report_infrastructure
    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a shell command as one action. Raises `RuntimeError` after `timeout_sec`."""
        wanted = self._resolve_user(user)
        options = {"user": str(wanted)} if wanted not in (None, "") else {}
        output = await self._sandbox().run(
            ["bash", "-c", command],
            cwd=cwd or self.task_env_config.workdir,
            env=self._merge_env(env) or {},
            timeout_s=float(timeout_sec or MAX_TIMEOUT_S),
            **options,
        )
        if options and not output.has_run:
            raise RuntimeRequestError(output.reason)
        if output.timed_out:
            raise RuntimeError(f"Command timed out after {timeout_sec or MAX_TIMEOUT_S} seconds")
        stdout = output.stdout.decode(errors="replace")
        return ExecResult(stdout=stdout, stderr=output.stderr_with_reason(), return_code=output.exit_code)

    @_report_infrastructure
    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a local file into the environment."""
        source = Path(source_path)
        await self._sandbox().write(target_path, source.read_bytes())
        mode = f"{source.stat().st_mode & 0o777:o}"
        await self._sandbox().run(["chmod", mode, target_path], timeout_s=60)

    @_report_infrastructure
    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy the content of a local directory into a directory of the environment."""
        await self._sandbox().upload_directory(source_dir, target_dir)

    @_report_infrastructure
    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file of the environment to this machine."""
        content = await self._sandbox().read(source_path)
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        Path(target_path).write_bytes(content)

    @_report_infrastructure
    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy the content of a directory of the environment into a local directory."""
        await self._sandbox().download_directory(source_dir, target_dir)

    def _sandbox(self) -> AsyncEnvironmentPrograms:
        if self._programs is None:
            raise RuntimeError("The environment is not started")
        return self._programs
