"""Test how the manager restores a snapshot into a new environment."""

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest_asyncio

from arl_core.domain.model import Fence
from support.builders import EPOCH
from support.cpu import Cpu, managing
from support.executor import FailingWork, FakeExecutor
from support.rows import Rows, rows_in

WISHED = "update actions set cancel_requested_at = now() where id = $1"


@pytest_asyncio.fixture
async def rows(database: str) -> AsyncIterator[Rows]:
    async with rows_in(database) as rows:
        yield rows


async def forking(cpu: Cpu, snapshot: UUID) -> Fence:
    """Start an action that creates an environment from this snapshot and return its fence."""
    made = {"trajectory": "x", "scope": "trajectory", "environment_id": uuid4()}
    return await cpu.running(kind="environment.create", snapshot=snapshot, argv=None, **made)


async def test_restarted_manager_still_restores_the_snapshot_of_a_new_environment(rows: Rows, tmp_path: Path) -> None:
    executor = FakeExecutor(EPOCH)
    async with managing(rows, executor, snapshots_dir=tmp_path) as cpu:
        fence = await forking(cpu, uuid4())
    async with managing(rows, executor, snapshots_dir=tmp_path):
        executor.finish(fence)
        assert (await rows.until_state(fence.action_id, "settled"))["outcome"] == "user_error"


async def test_environment_with_a_failed_restore_is_destroyed_before_settling(rows: Rows, tmp_path: Path) -> None:
    snapshot = uuid4()
    async with managing(rows, snapshots_dir=tmp_path) as cpu:
        cpu.executor.file_operation = FailingWork(ConnectionError("it broke off"))
        (tmp_path / "node-n" / f"{snapshot}.tar").touch()
        fence = await forking(cpu, snapshot)
        cpu.executor.finish(fence)
        row = await rows.until_state(fence.action_id, "settled")
        assert (row["outcome"], row["reason"]) == ("infra_error", "restore_failed")
        assert cpu.executor.destroyed == [row["environment_id"]]
        assert await rows.value("select lost_at is not null from environments where id = $1", row["environment_id"])


async def test_action_killed_during_a_restore_settles_as_cancelled(rows: Rows, tmp_path: Path) -> None:
    snapshot = uuid4()
    async with managing(rows, snapshots_dir=tmp_path) as cpu:
        cpu.executor.file_operation = work = FailingWork(ConnectionError("it was killed"), waits=True)
        (tmp_path / "node-n" / f"{snapshot}.tar").touch()
        fence = await forking(cpu, snapshot)
        cpu.executor.finish(fence)
        await work.begun.wait()
        await rows.unguarded(WISHED, fence.action_id)
        assert await cpu.executor.next_kill() == fence
        work.may_end.set()
        row = await rows.until_state(fence.action_id, "settled")
        assert (row["outcome"], cpu.executor.destroyed) == ("cancelled", [row["environment_id"]])


async def test_manager_start_deletes_only_its_own_stale_snapshot_files(rows: Rows, tmp_path: Path) -> None:
    here, other = tmp_path / "node-n", tmp_path / "node-other"
    stays = [here / "notes.tar", here / "lost+found" / "x", other / f"{uuid4()}.tar", tmp_path / f"{uuid4()}.tar"]
    goes = [here / f"{uuid4()}.tar", here / f".partial-{uuid4()}"]
    for path in (*stays, *goes):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    async with managing(rows, snapshots_dir=tmp_path):
        assert [path.exists() for path in (*stays, *goes)] == [True] * len(stays) + [False] * len(goes)
