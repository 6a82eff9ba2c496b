"""Snapshots on this node: taking, restoring and removing them.

A file gets its final name once it is fully on disk, and its row follows. A file without a row is unused.
"""

import asyncio
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

from arl_core.domain.model import Fence
from arl_cpu.contract.environment_access import FileOperation, FileOperationError
from arl_cpu.contract.executor import ExecutionReport, Executor
from arl_cpu.node import repository
from arl_cpu.node.transfers import report_for_error
from arl_store.tx import PostgresStore, Row
from arl_wire.errors import Conflict, TooLarge

__all__ = ["NodeSnapshots"]

PARTIAL_PREFIX = ".partial-"
_SNAPSHOT_NAME = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.tar")
BLOCK_BYTES = 1 << 20
MEMBER_OVERHEAD_BYTES = 2560
"""Largest overhead of an archive member in bytes, in addition to its content and its names."""
ARCHIVE_OVERHEAD_BYTES = 8 * MEMBER_OVERHEAD_BYTES
"""Largest overhead of the archive itself, in bytes."""
RESTORE_TIMEOUT_S = 600


class NodeSnapshots:
    """The snapshot files of this node, within a budget of bytes."""

    def __init__(
        self, directory: Path | None, *, node_name: str, max_mib: int, store: PostgresStore, executor: Executor
    ) -> None:
        # Several nodes may share the directory, on one machine or on a shared file system.
        self._directory = None if directory is None else directory / f"node-{quote(node_name, safe='')}"
        self._max_bytes = max_mib << 20
        self._store, self._executor = store, executor
        self._pending_restores: dict[Fence, tuple[UUID, UUID]] = {}
        """Environment and snapshot of each attempt that creates an environment from a snapshot."""
        self._reserved: dict[UUID, int] = {}
        self.epoch = UUID(int=0)

    async def start(self, *, node_id: int, epoch: UUID) -> None:
        """Remove incomplete files and files without a row. Only names that this node could have created are removed."""
        self.epoch = epoch
        if self._directory is None:
            return
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        async with self._store.read() as tx:
            known = {f"{id}.tar" for id in await repository.list_snapshots(tx, node_id=node_id)}
        for path in self._directory.iterdir():
            if path.name not in known and _is_snapshot_file(path):
                path.unlink()

    async def take(self, action: UUID, operation: FileOperation) -> Mapping[str, Any]:
        """Store the archive that the operation packs. Raises TooLarge if the node's budget does not suffice."""
        if self._directory is None:
            raise Conflict("this node stores no snapshots: TANGRAM_SNAPSHOTS_DIR is not set")
        size = await operation.read_response()
        most = size["bytes"] + size["names"] + size["members"] * MEMBER_OVERHEAD_BYTES + ARCHIVE_OVERHEAD_BYTES
        self._reserve(action, most)
        partial = self._directory / f"{PARTIAL_PREFIX}{action}"
        try:
            await _write_archive(operation, partial, most)
            partial.rename(self._path(action))
            await asyncio.to_thread(_sync_directory, self._directory)
            await self._record(action, size)
        finally:
            partial.unlink(missing_ok=True)
            del self._reserved[action]
        return {"id": str(action)}

    def expect_restore(self, row: Row) -> None:
        """Remember the snapshot if this action creates an environment from one."""
        if (snapshot := json.loads(row.environment).get("snapshot")) is not None:
            self._pending_restores[Fence(row.id, row.grant_no)] = row.environment_id, UUID(snapshot)

    async def complete_restore(self, report: ExecutionReport, *, is_killed: Callable[[], bool]) -> ExecutionReport:
        """Restore the snapshot of a created environment and return the final report. Other reports are returned
        unchanged.

        If the restore fails, the environment is destroyed before its action settles.
        """
        environment, snapshot = self._pending_restores.pop(report.fence, (None, None))
        if environment is None or snapshot is None or report.outcome != "ok":
            return report
        failed = await self._restore_error(report.fence, environment, snapshot)
        if is_killed():
            failed = ExecutionReport(fence=report.fence, outcome="cancelled")
        if failed is None:
            return report
        with suppress(ConnectionError):  # the launcher has ended, and its environments with it
            await self._executor.destroy([environment])
        return replace(failed, run_us=report.run_us, environment_lost=True)

    async def _restore_error(self, fence: Fence, environment: UUID, snapshot: UUID) -> ExecutionReport | None:
        try:
            await self._restore(fence, environment, snapshot)
        except FileOperationError as refused:
            return report_for_error(fence, refused)
        except FileNotFoundError:
            return ExecutionReport(fence=fence, outcome="user_error", message="the snapshot no longer exists")
        except OSError as error:
            message = f"the snapshot could not be restored: {error}"
            return ExecutionReport(fence=fence, outcome="infra_error", reason="restore_failed", message=message)
        return None

    async def remove(self, ids: Iterable[UUID]) -> None:
        """Delete snapshots, rows last: the poll repeats a deletion only while the row exists."""
        gone = sorted(ids)
        for id in gone:
            if self._directory is not None:
                self._path(id).unlink(missing_ok=True)
        async with self._store.write() as tx:
            await repository.delete_snapshots(tx, gone)

    async def _restore(self, fence: Fence, environment: UUID, snapshot: UUID) -> None:
        asked = {"op": "unpack", "path": "", "whole": True, "limit_s": RESTORE_TIMEOUT_S}
        if self._directory is None:
            raise FileNotFoundError("TANGRAM_SNAPSHOTS_DIR is no longer set")
        with self._path(snapshot).open("rb") as file:
            work = await self._executor.start_file_operation(fence, environment, asked)
            try:
                await work.read_response()
                while block := await asyncio.to_thread(file.read, BLOCK_BYTES):
                    await work.send(block)
                await work.send(b"")
                await work.read_response()
            finally:
                await work.close()

    async def _record(self, action: UUID, size: Mapping[str, int]) -> None:
        async with self._store.write() as tx:
            counts = {"members": size["members"], "bytes": size["bytes"]}
            recorded = await repository.record_snapshot(tx, action, epoch=self.epoch, size=counts)
        if not recorded:
            self._path(action).unlink()
            raise Conflict("the action that took the snapshot no longer runs on this node")

    def _reserve(self, action: UUID, count: int) -> None:
        assert self._directory is not None
        used = sum(
            path.stat().st_size for path in self._directory.iterdir() if _SNAPSHOT_NAME.fullmatch(path.name)
        ) + sum(self._reserved.values())
        if used + count > self._max_bytes:
            raise TooLarge(
                f"the snapshot needs {count >> 20} MiB, but the node has only {max(0, self._max_bytes - used) >> 20}"
                f" of its {self._max_bytes >> 20} MiB left (TANGRAM_SNAPSHOTS_MIB): delete other snapshots first"
            )
        self._reserved[action] = count

    def _path(self, id: UUID) -> Path:
        assert self._directory is not None
        return self._directory / f"{id}.tar"


async def _write_archive(operation: FileOperation, path: Path, max_bytes: int) -> None:
    """Write the packed archive to a file. Raises TooLarge if it exceeds `max_bytes`."""
    left = max_bytes
    with path.open("xb", buffering=0) as file:
        async for chunk in operation.output():
            left -= len(chunk)
            if left < 0:
                raise TooLarge(f"the snapshot has more than the {max_bytes} bytes that were reserved for it")
            await asyncio.to_thread(file.write, chunk)
        await asyncio.to_thread(os.fsync, file.fileno())


def _is_snapshot_file(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    return path.name.startswith(PARTIAL_PREFIX) or _SNAPSHOT_NAME.fullmatch(path.name) is not None


def _sync_directory(directory: Path) -> None:
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
