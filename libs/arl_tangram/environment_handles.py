"""Environments as objects: run programs, open shells, copy files, save snapshots; a `with` block ends them."""

from collections.abc import Coroutine, Generator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, Unpack
from uuid import UUID

from arl_tangram.operations import expect_ok, fetched_files
from arl_tangram.options import ExecOptions, ForkOptions, Network, environment_files_action
from arl_tangram.sessions import AsyncEnvironmentSession, EnvironmentSession
from arl_wire.actions.action import Action, SubmitActionRequest
from arl_wire.environments.environment import EnvironmentInfo, SnapshotInfo
from arl_wire.environments.files import FileEntry, UploadArchiveResponse
from arl_wire.environments.forks import ForkEnvironmentResponse
from arl_wire.errors import Conflict, NotFound, TangramError, TooLarge

__all__ = ["AsyncEnvironment", "AsyncEnvironmentFiles", "Environment", "EnvironmentFiles", "PendingEnvironment"]


class EnvironmentClient(Protocol):
    """The methods of `Tangram` that an environment uses."""

    def run(
        self,
        action: SubmitActionRequest | None = None,
        /,
        *,
        wait_timeout_s: float | None = None,
        **options: Unpack[ExecOptions],
    ) -> Action: ...
    def submit(self, action: SubmitActionRequest | None = None, /, **options: Unpack[ExecOptions]) -> Action: ...
    def end_environment(self, id: UUID) -> None: ...
    def update_environment(self, id: UUID, *, network: Network) -> EnvironmentInfo: ...
    def list_files(self, id: UUID, path: str = "", *, recursive: bool = False) -> list[FileEntry]: ...
    def upload_archive(self, id: UUID, archive: Path | str, path: str = "") -> UploadArchiveResponse: ...
    def upload_directory(self, id: UUID, directory: Path | str, path: str = "") -> UploadArchiveResponse: ...
    def download_directory(self, id: UUID, target: Path | str, path: str = "") -> None: ...
    def snapshot(self, id: UUID) -> SnapshotInfo: ...
    def port_url(self, id: UUID, port: int, *, lifetime_s: int = 3600) -> str: ...
    def fork_environment(self, id: UUID, count: int, **options: Unpack[ForkOptions]) -> ForkEnvironmentResponse: ...


class AsyncEnvironmentClient(Protocol):
    """The methods of `AsyncTangram` that an environment uses."""

    async def run(
        self,
        action: SubmitActionRequest | None = None,
        /,
        *,
        wait_timeout_s: float | None = None,
        **options: Unpack[ExecOptions],
    ) -> Action: ...
    async def submit(self, action: SubmitActionRequest | None = None, /, **options: Unpack[ExecOptions]) -> Action: ...
    async def end_environment(self, id: UUID) -> None: ...
    async def update_environment(self, id: UUID, *, network: Network) -> EnvironmentInfo: ...
    async def list_files(self, id: UUID, path: str = "", *, recursive: bool = False) -> list[FileEntry]: ...
    async def upload_archive(self, id: UUID, archive: Path | str, path: str = "") -> UploadArchiveResponse: ...
    async def upload_directory(self, id: UUID, directory: Path | str, path: str = "") -> UploadArchiveResponse: ...
    async def download_directory(self, id: UUID, target: Path | str, path: str = "") -> None: ...
    async def snapshot(self, id: UUID) -> SnapshotInfo: ...
    async def port_url(self, id: UUID, port: int, *, lifetime_s: int = 3600) -> str: ...
    async def fork_environment(
        self, id: UUID, count: int, **options: Unpack[ForkOptions]
    ) -> ForkEnvironmentResponse: ...


class EnvironmentFiles:
    """The files of an environment. Paths are relative to its working directory.

    Each operation runs in order with the actions of the environment.
    """

    def __init__(self, client: EnvironmentClient, info: EnvironmentInfo) -> None:
        self._client = client
        self._info = info

    def read(self, path: str) -> bytes:
        """Return the content of a file, at most 8 MiB. Raises `NotFound` or `TooLarge`."""
        action = environment_files_action(self._info, fetch=[path])
        return _only_file(self._client.run(action), path)

    def write(self, path: str, content: bytes | str) -> None:
        """Write a file and create its parent directories."""
        expect_ok(self._client.run(environment_files_action(self._info, files={path: content})))

    def write_many(self, files: Mapping[str, bytes | str]) -> None:
        """Write several files in one action, by path."""
        expect_ok(self._client.run(environment_files_action(self._info, files=files)))

    def list(self, path: str = "", *, recursive: bool = False) -> list[FileEntry]:
        """List the entries of a directory in order of their names."""
        return self._client.list_files(self._info.id, path, recursive=recursive)


class Environment:
    """A persistent environment. A `with` block ends it and deletes its content.

    Attributes:
        info: The state of the environment when this object was created.
        files: Reads and writes single files.
    """

    def __init__(self, client: EnvironmentClient, info: EnvironmentInfo) -> None:
        self._client = client
        self.info = info
        self.files = EnvironmentFiles(client, info)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The error of the block must not be replaced. Without one, an environment that has ended already is no error.
        with suppress(TangramError) if error is not None else suppress(NotFound, Conflict):
            self.end()

    @property
    def id(self) -> UUID:
        """Id of the environment."""
        return self.info.id

    @property
    def trajectory(self) -> str:
        """Name of the trajectory to which the environment belongs."""
        return self.info.trajectory

    def run(self, *, wait_timeout_s: float | None = None, **options: Unpack[ExecOptions]) -> Action:
        """Run a program in the environment and wait for its outcome, as `Tangram.run` does."""
        return self._client.run(wait_timeout_s=wait_timeout_s, **_in_environment(self.info, options))

    def submit(self, **options: Unpack[ExecOptions]) -> Action:
        """Submit a program without waiting. Programs of one environment run one at a time, in order."""
        return self._client.submit(**_in_environment(self.info, options))

    def shell(self, name: str = "main") -> EnvironmentSession:
        """Return a shell that stays open between commands. Its first command opens it."""
        return EnvironmentSession(self._client, self.info, name)

    def upload(self, source: Path | str, path: str = "") -> UploadArchiveResponse:
        """Copy a local directory, or unpack a local tar archive, into the directory `path`."""
        upload = self._client.upload_directory if Path(source).is_dir() else self._client.upload_archive
        return upload(self.id, source, path)

    def download(self, path: str, target: Path | str) -> None:
        """Copy the directory or file `path` into the local directory `target`."""
        self._client.download_directory(self.id, target, path)

    def snapshot(self) -> SnapshotInfo:
        """Save all files. `Tangram.environment(snapshot=…)` starts another environment from them."""
        return self._client.snapshot(self.id)

    def port_url(self, port: int, *, lifetime_s: int = 3600) -> str:
        """Return a URL at which a server inside is reached without an API key, for `lifetime_s` seconds."""
        return self._client.port_url(self.id, port, lifetime_s=lifetime_s)

    def fork(self, count: int, **options: Unpack[ForkOptions]) -> "list[Environment]":
        """Create `count` environments with the same files: all of them, or none. Processes are not copied."""
        forks = self._client.fork_environment(self.id, count, **options)
        return [Environment(self._client, each) for each in forks.items]

    def set_network(self, network: Network) -> None:
        """Change the network, also for a running program. Raises ValidationFailed above the limit of the operator."""
        self.info = self._client.update_environment(self.id, network=network)

    def end(self) -> None:
        """End the environment and delete its content. Queued actions of it are cancelled."""
        self._client.end_environment(self.id)


class AsyncEnvironmentFiles:
    """The asynchronous form of `EnvironmentFiles`."""

    def __init__(self, client: AsyncEnvironmentClient, info: EnvironmentInfo) -> None:
        self._client = client
        self._info = info

    async def read(self, path: str) -> bytes:
        """Return the content of a file, at most 8 MiB. Raises `NotFound` or `TooLarge`."""
        action = environment_files_action(self._info, fetch=[path])
        return _only_file(await self._client.run(action), path)

    async def write(self, path: str, content: bytes | str) -> None:
        """Write a file and create its parent directories."""
        expect_ok(await self._client.run(environment_files_action(self._info, files={path: content})))

    async def write_many(self, files: Mapping[str, bytes | str]) -> None:
        """Write several files in one action, by path."""
        expect_ok(await self._client.run(environment_files_action(self._info, files=files)))

    async def list(self, path: str = "", *, recursive: bool = False) -> list[FileEntry]:
        """List the entries of a directory in order of their names."""
        return await self._client.list_files(self._info.id, path, recursive=recursive)


class AsyncEnvironment:
    """The asynchronous form of `Environment`. An `async with` block ends it.

    Attributes:
        info: The state of the environment when this object was created.
        files: Reads and writes single files.
    """

    def __init__(self, client: AsyncEnvironmentClient, info: EnvironmentInfo) -> None:
        self._client = client
        self.info = info
        self.files = AsyncEnvironmentFiles(client, info)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The error of the block must not be replaced. Without one, an environment that has ended already is no error.
        with suppress(TangramError) if error is not None else suppress(NotFound, Conflict):
            await self.end()

    @property
    def id(self) -> UUID:
        """Id of the environment."""
        return self.info.id

    @property
    def trajectory(self) -> str:
        """Name of the trajectory to which the environment belongs."""
        return self.info.trajectory

    async def run(self, *, wait_timeout_s: float | None = None, **options: Unpack[ExecOptions]) -> Action:
        """Run a program in the environment and wait for its outcome, as `AsyncTangram.run` does."""
        return await self._client.run(wait_timeout_s=wait_timeout_s, **_in_environment(self.info, options))

    async def submit(self, **options: Unpack[ExecOptions]) -> Action:
        """Submit a program without waiting. Programs of one environment run one at a time, in order."""
        return await self._client.submit(**_in_environment(self.info, options))

    def shell(self, name: str = "main") -> AsyncEnvironmentSession:
        """Return a shell that stays open between commands. Its first command opens it."""
        return AsyncEnvironmentSession(self._client, self.info, name)

    async def upload(self, source: Path | str, path: str = "") -> UploadArchiveResponse:
        """Copy a local directory, or unpack a local tar archive, into the directory `path`."""
        upload = self._client.upload_directory if Path(source).is_dir() else self._client.upload_archive
        return await upload(self.id, source, path)

    async def download(self, path: str, target: Path | str) -> None:
        """Copy the directory or file `path` into the local directory `target`."""
        await self._client.download_directory(self.id, target, path)

    async def snapshot(self) -> SnapshotInfo:
        """Save all files. `AsyncTangram.environment(snapshot=…)` starts another environment from them."""
        return await self._client.snapshot(self.id)

    async def port_url(self, port: int, *, lifetime_s: int = 3600) -> str:
        """Return a URL at which a server inside is reached without an API key, for `lifetime_s` seconds."""
        return await self._client.port_url(self.id, port, lifetime_s=lifetime_s)

    async def fork(self, count: int, **options: Unpack[ForkOptions]) -> "list[AsyncEnvironment]":
        """Create `count` environments with the same files: all of them, or none. Processes are not copied."""
        forks = await self._client.fork_environment(self.id, count, **options)
        return [AsyncEnvironment(self._client, each) for each in forks.items]

    async def set_network(self, network: Network) -> None:
        """Change the network, also for a running program. Raises ValidationFailed above the limit of the operator."""
        self.info = await self._client.update_environment(self.id, network=network)

    async def end(self) -> None:
        """End the environment and delete its content. Queued actions of it are cancelled."""
        await self._client.end_environment(self.id)


class PendingEnvironment(Coroutine[Any, Any, AsyncEnvironment]):
    """A coroutine that creates an environment. `async with` also ends the environment."""

    def __init__(self, creating: Coroutine[Any, Any, AsyncEnvironment]) -> None:
        self._creating = creating
        self._environment: AsyncEnvironment | None = None

    def __await__(self) -> Generator[Any, Any, AsyncEnvironment]:
        return self._creating.__await__()

    def send(self, value: Any) -> Any:
        """Resume the creation, as of any coroutine."""
        return self._creating.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error in the creation, as of any coroutine."""
        return self._creating.throw(*error)

    def close(self) -> None:
        """Abandon the creation, as of any coroutine."""
        self._creating.close()

    async def __aenter__(self) -> AsyncEnvironment:
        self._environment = await self._creating
        return self._environment

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._environment is not None:
            await self._environment.__aexit__(kind, error, trace)


def _in_environment(info: EnvironmentInfo, options: ExecOptions) -> ExecOptions:
    return {**options, "task": options.get("task", info.task), "environment_id": info.id}


def _only_file(action: Action, path: str) -> bytes:
    files = fetched_files(expect_ok(action))
    if path in files:
        return files[path]
    if action.message:
        raise TooLarge(action.message)
    raise NotFound(f"File {path!r} does not exist in environment {action.environment}")
