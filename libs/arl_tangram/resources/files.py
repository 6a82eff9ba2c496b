"""Files, snapshots and forks of persistent environments, for both clients. Archives are packed and unpacked here."""

import tarfile
import tempfile
from abc import abstractmethod
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, Unpack
from uuid import UUID, uuid4

from arl_tangram.operations import Operation, SdkRequest, call_with_retry, list_all_pages
from arl_tangram.options import ForkOptions, fork_request
from arl_tangram.resources.environment_operations import fork_environment, port_url
from arl_wire.environments.environment import SnapshotInfo, SnapshotListResponse
from arl_wire.environments.files import FileEntry, FileListResponse, UploadArchiveResponse
from arl_wire.environments.forks import ForkEnvironmentRequest, ForkEnvironmentResponse

__all__ = ["AsyncFileMethods", "FileMethods"]

Value = TypeVar("Value")
TRANSFER_TIMEOUT_S = 900.0
"""Seconds for a transfer, including its wait for earlier actions of the environment."""
FORK_TIMEOUT_S = 300.0
"""Seconds in which all forks must exist after the files of their source were saved."""


class FileMethods:
    """Methods for files. Paths are relative to the working directory; an empty path is all of it.

    Each operation is ordered with the actions of the environment.
    """

    _retry_timeout_s: float
    _url: str

    def list_files(self, id: UUID, path: str = "", *, recursive: bool = False) -> list[FileEntry]:
        """List the entries of a directory in order of their names."""
        return self._run(_list_files(id, path, recursive, self._retry_timeout_s))

    def upload_archive(self, id: UUID, archive: Path | str, path: str = "") -> UploadArchiveResponse:
        """Unpack a tar archive, plain or gzip. If a member fails, the members before it remain."""
        return self._run(_upload(id, Path(archive), path, self._retry_timeout_s))

    def upload_directory(self, id: UUID, directory: Path | str, path: str = "") -> UploadArchiveResponse:
        """Upload the files, directories and links of a directory. Existing entries remain."""
        with _pack(Path(directory)) as archive:
            return self._run(_upload(id, archive, path, self._retry_timeout_s))

    def download_archive(self, id: UUID, target: Path | str, path: str = "") -> None:
        """Download a directory or a file as a tar archive."""
        self._run(_download(id, Path(target), path, self._retry_timeout_s))

    def download_directory(self, id: UUID, target: Path | str, path: str = "") -> None:
        """Download a directory and unpack it into `target`. Raises `tarfile.FilterError` for links that leave it."""
        with _temporary_archive() as archive:
            self._run(_download(id, archive, path, self._retry_timeout_s))
            _unpack(archive, Path(target))

    def snapshot(self, id: UUID) -> SnapshotInfo:
        """Save everything written in an environment. `environment(snapshot=…)` starts others from it."""
        return self._run(_create_snapshot(id, self._retry_timeout_s))

    def snapshots(self, *, task: str | None = None) -> list[SnapshotInfo]:
        """List all snapshots, newest first."""
        return self._run(_list_snapshots(task, self._retry_timeout_s))

    def delete_snapshot(self, id: UUID) -> None:
        """Delete a snapshot. Environments that started from it continue."""
        self._run(_delete_snapshot(id, self._retry_timeout_s))

    def fork_environment(
        self, id: UUID, count: int, *, wait_timeout_s: float = FORK_TIMEOUT_S, **options: Unpack[ForkOptions]
    ) -> ForkEnvironmentResponse:
        """Create `count` environments with the files of this one. Processes and memory are not copied.

        Either all forks exist afterwards, or none. Raises `Unavailable` if not all exist within `wait_timeout_s`
        seconds after the files were saved (at most 600).
        """
        return self._run(_fork(id, fork_request(count, options), wait_timeout_s, self._retry_timeout_s))

    def port_url(self, id: UUID, port: int, *, lifetime_s: int = 3600) -> str:
        """Return a URL of a port of an environment. It needs no API key, and ends after `lifetime_s` seconds."""
        return self._run(
            port_url(id, port, lifetime_s=lifetime_s, url=self._url, retry_timeout_s=self._retry_timeout_s)
        )

    @abstractmethod
    def _run(self, operation: Operation[Value]) -> Value: ...


class AsyncFileMethods:
    """Asynchronous methods for files."""

    _retry_timeout_s: float
    _url: str

    async def list_files(self, id: UUID, path: str = "", *, recursive: bool = False) -> list[FileEntry]:
        """List the entries of a directory in order of their names."""
        return await self._run(_list_files(id, path, recursive, self._retry_timeout_s))

    async def upload_archive(self, id: UUID, archive: Path | str, path: str = "") -> UploadArchiveResponse:
        """Unpack a tar archive, plain or gzip. If a member fails, the members before it remain."""
        return await self._run(_upload(id, Path(archive), path, self._retry_timeout_s))

    async def upload_directory(self, id: UUID, directory: Path | str, path: str = "") -> UploadArchiveResponse:
        """Upload the files, directories and links of a directory. Existing entries remain."""
        with _pack(Path(directory)) as archive:
            return await self._run(_upload(id, archive, path, self._retry_timeout_s))

    async def download_archive(self, id: UUID, target: Path | str, path: str = "") -> None:
        """Download a directory or a file as a tar archive."""
        await self._run(_download(id, Path(target), path, self._retry_timeout_s))

    async def download_directory(self, id: UUID, target: Path | str, path: str = "") -> None:
        """Download a directory and unpack it into `target`. Raises `tarfile.FilterError` for links that leave it."""
        with _temporary_archive() as archive:
            await self._run(_download(id, archive, path, self._retry_timeout_s))
            _unpack(archive, Path(target))

    async def snapshot(self, id: UUID) -> SnapshotInfo:
        """Save everything written in an environment. `environment(snapshot=…)` starts others from it."""
        return await self._run(_create_snapshot(id, self._retry_timeout_s))

    async def snapshots(self, *, task: str | None = None) -> list[SnapshotInfo]:
        """List all snapshots, newest first."""
        return await self._run(_list_snapshots(task, self._retry_timeout_s))

    async def delete_snapshot(self, id: UUID) -> None:
        """Delete a snapshot. Environments that started from it continue."""
        await self._run(_delete_snapshot(id, self._retry_timeout_s))

    async def fork_environment(
        self, id: UUID, count: int, *, wait_timeout_s: float = FORK_TIMEOUT_S, **options: Unpack[ForkOptions]
    ) -> ForkEnvironmentResponse:
        """Create `count` environments with the files of this one. Processes and memory are not copied.

        Either all forks exist afterwards, or none. Raises `Unavailable` if not all exist within `wait_timeout_s`
        seconds after the files were saved (at most 600).
        """
        return await self._run(_fork(id, fork_request(count, options), wait_timeout_s, self._retry_timeout_s))

    async def port_url(self, id: UUID, port: int, *, lifetime_s: int = 3600) -> str:
        """Return a URL of a port of an environment. It needs no API key, and ends after `lifetime_s` seconds."""
        return await self._run(
            port_url(id, port, lifetime_s=lifetime_s, url=self._url, retry_timeout_s=self._retry_timeout_s)
        )

    @abstractmethod
    def _run(self, operation: Operation[Value]) -> Awaitable[Value]: ...


def _list_files(id: UUID, path: str, recursive: bool, retry_timeout_s: float) -> Operation[list[FileEntry]]:
    query = {"recursive": int(recursive), **_path_query(path)}
    return (yield from list_all_pages(f"/v1/environments/{id}/files", query, FileListResponse, retry_timeout_s))


def _upload(id: UUID, archive: Path, path: str, retry_timeout_s: float) -> Operation[UploadArchiveResponse]:
    call = SdkRequest(
        method="PUT",
        path=f"/v1/environments/{id}/archive",
        query=_path_query(path),
        upload=archive,
        timeout_s=TRANSFER_TIMEOUT_S,
    )
    return UploadArchiveResponse.model_validate_json((yield from call_with_retry(call, retry_timeout_s)))


def _download(id: UUID, target: Path, path: str, retry_timeout_s: float) -> Operation[None]:
    call = SdkRequest(
        method="GET",
        path=f"/v1/environments/{id}/archive",
        query=_path_query(path),
        download=target,
        timeout_s=TRANSFER_TIMEOUT_S,
    )
    yield from call_with_retry(call, retry_timeout_s)


def _create_snapshot(id: UUID, retry_timeout_s: float) -> Operation[SnapshotInfo]:
    """Create a snapshot. If a response is lost, the retry creates a second snapshot; the list contains both."""
    call = SdkRequest(method="POST", path=f"/v1/environments/{id}/snapshots", timeout_s=TRANSFER_TIMEOUT_S)
    return SnapshotInfo.model_validate_json((yield from call_with_retry(call, retry_timeout_s)))


def _list_snapshots(task: str | None, retry_timeout_s: float) -> Operation[list[SnapshotInfo]]:
    query = {"task": task} if task is not None else {}
    return (yield from list_all_pages("/v1/snapshots", query, SnapshotListResponse, retry_timeout_s))


def _delete_snapshot(id: UUID, retry_timeout_s: float) -> Operation[None]:
    yield from call_with_retry(SdkRequest(method="DELETE", path=f"/v1/snapshots/{id}"), retry_timeout_s)


def _fork(
    id: UUID, request: ForkEnvironmentRequest, wait_s: float, retry_timeout_s: float
) -> Operation[ForkEnvironmentResponse]:
    return fork_environment(id, request, wait_s=wait_s, retry_timeout_s=retry_timeout_s, key=uuid4().hex)


def _path_query(path: str) -> dict[str, Any]:
    return {"path": path} if path else {}


@contextmanager
def _temporary_archive() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tangram-") as directory:
        yield Path(directory) / "archive.tar"


@contextmanager
def _pack(directory: Path) -> Iterator[Path]:
    with _temporary_archive() as path:
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
            archive.add(directory, arcname=".", filter=_filter_member)
        yield path


def _filter_member(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return member if member.isreg() or member.isdir() or member.issym() or member.islnk() else None


def _unpack(path: Path, target: Path) -> None:
    if not hasattr(tarfile, "data_filter"):
        raise RuntimeError("this Python cannot unpack what others have packed safely; 3.11.4 can")
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path) as archive:
        archive.extractall(target, filter="data")
