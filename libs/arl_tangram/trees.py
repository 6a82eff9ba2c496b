"""File trees of kept environments and their snapshots, for both clients. Archives are packed and unpacked here."""

import tarfile
import tempfile
from abc import abstractmethod
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from arl_tangram.operations import Call, Operation, all_pages, answered
from arl_wire.files import FileEntry, FilePage, Unpacked
from arl_wire.snapshots import Snapshot, SnapshotPage

__all__ = ["AsyncTrees", "Trees"]

Value = TypeVar("Value")
TIMEOUT_S = 900.0
"""Its turn among the environment's actions, and the time that a transfer may take."""


class Trees:
    """Paths are below the working directory; an empty one is all of it. Each has its turn among the actions there."""

    _patience_s: float

    def list_files(self, id: UUID, path: str = "", *, recursive: bool = False) -> list[FileEntry]:
        """What is in a directory, in the order of names."""
        return self._run(_listed(id, path, recursive, self._patience_s))

    def upload_archive(self, id: UUID, archive: Path | str, path: str = "") -> Unpacked:
        """Unpack a tar archive there, plain or gzip. Where a member cannot be, those before it are there."""
        return self._run(_uploaded(id, Path(archive), path, self._patience_s))

    def upload_directory(self, id: UUID, directory: Path | str, path: str = "") -> Unpacked:
        """What is in it, its files, directories and links, beside what is there already."""
        with _packed(Path(directory)) as archive:
            return self._run(_uploaded(id, archive, path, self._patience_s))

    def download_archive(self, id: UUID, target: Path | str, path: str = "") -> None:
        """A directory, or a file, as a tar archive."""
        self._run(_downloaded(id, Path(target), path, self._patience_s))

    def download_directory(self, id: UUID, target: Path | str, path: str = "") -> None:
        """Unpacked into `target`. Raises `tarfile.FilterError` for links that would lead out of it."""
        with _temporary() as archive:
            self._run(_downloaded(id, archive, path, self._patience_s))
            _unpack(archive, Path(target))

    def snapshot(self, id: UUID) -> Snapshot:
        """Keep all that was written in an environment; `CreateEnvironment.snapshot` makes others begin with it."""
        return self._run(_taken(id, self._patience_s))

    def snapshots(self, *, task: str | None = None) -> list[Snapshot]:
        """Newest first, all pages."""
        return self._run(_snapshots(task, self._patience_s))

    def delete_snapshot(self, id: UUID) -> None:
        """What began with it goes on."""
        self._run(_deleted(id, self._patience_s))

    @abstractmethod
    def _run(self, operation: Operation[Value]) -> Value: ...


class AsyncTrees:
    """What each method does is said at `Trees`."""

    _patience_s: float

    async def list_files(self, id: UUID, path: str = "", *, recursive: bool = False) -> list[FileEntry]:
        return await self._run(_listed(id, path, recursive, self._patience_s))

    async def upload_archive(self, id: UUID, archive: Path | str, path: str = "") -> Unpacked:
        return await self._run(_uploaded(id, Path(archive), path, self._patience_s))

    async def upload_directory(self, id: UUID, directory: Path | str, path: str = "") -> Unpacked:
        with _packed(Path(directory)) as archive:
            return await self._run(_uploaded(id, archive, path, self._patience_s))

    async def download_archive(self, id: UUID, target: Path | str, path: str = "") -> None:
        await self._run(_downloaded(id, Path(target), path, self._patience_s))

    async def download_directory(self, id: UUID, target: Path | str, path: str = "") -> None:
        with _temporary() as archive:
            await self._run(_downloaded(id, archive, path, self._patience_s))
            _unpack(archive, Path(target))

    async def snapshot(self, id: UUID) -> Snapshot:
        return await self._run(_taken(id, self._patience_s))

    async def snapshots(self, *, task: str | None = None) -> list[Snapshot]:
        return await self._run(_snapshots(task, self._patience_s))

    async def delete_snapshot(self, id: UUID) -> None:
        await self._run(_deleted(id, self._patience_s))

    @abstractmethod
    def _run(self, operation: Operation[Value]) -> Awaitable[Value]: ...


def _listed(id: UUID, path: str, recursive: bool, patience_s: float) -> Operation[list[FileEntry]]:
    query = {"recursive": int(recursive), **_at(path)}
    return (yield from all_pages(f"/v1/environments/{id}/files", query, FilePage, patience_s))


def _uploaded(id: UUID, archive: Path, path: str, patience_s: float) -> Operation[Unpacked]:
    call = Call(
        method="PUT", path=f"/v1/environments/{id}/archive", query=_at(path), upload=archive, timeout_s=TIMEOUT_S
    )
    return Unpacked.model_validate_json((yield from answered(call, patience_s)))


def _downloaded(id: UUID, target: Path, path: str, patience_s: float) -> Operation[None]:
    call = Call(
        method="GET", path=f"/v1/environments/{id}/archive", query=_at(path), download=target, timeout_s=TIMEOUT_S
    )
    yield from answered(call, patience_s)


def _taken(id: UUID, patience_s: float) -> Operation[Snapshot]:
    """One that was taken and not heard of is another one, and in the list."""
    call = Call(method="POST", path=f"/v1/environments/{id}/snapshots", timeout_s=TIMEOUT_S)
    return Snapshot.model_validate_json((yield from answered(call, patience_s)))


def _snapshots(task: str | None, patience_s: float) -> Operation[list[Snapshot]]:
    query = {"task": task} if task is not None else {}
    return (yield from all_pages("/v1/snapshots", query, SnapshotPage, patience_s))


def _deleted(id: UUID, patience_s: float) -> Operation[None]:
    yield from answered(Call(method="DELETE", path=f"/v1/snapshots/{id}"), patience_s)


def _at(path: str) -> dict[str, Any]:
    return {"path": path} if path else {}


@contextmanager
def _temporary() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tangram-") as directory:
        yield Path(directory) / "archive.tar"


@contextmanager
def _packed(directory: Path) -> Iterator[Path]:
    with _temporary() as path:
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
            archive.add(directory, arcname=".", filter=_movable)
        yield path


def _movable(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return member if member.isreg() or member.isdir() or member.issym() or member.islnk() else None


def _unpack(path: Path, target: Path) -> None:
    if not hasattr(tarfile, "data_filter"):
        raise RuntimeError("this Python cannot unpack what others have packed safely; 3.11.4 can")
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path) as archive:
        archive.extractall(target, filter="data")
