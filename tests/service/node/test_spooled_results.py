"""Test that managers replay the results of an earlier process, on a real Postgres."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest_asyncio
from aiohttp import web

from arl_api.calls import CallReport, EndpointResponse
from arl_api.manager import ApiManager
from arl_core.domain.model import Fence
from arl_cpu.contract.executor import CapturedStream, ExecutionReport
from arl_cpu.node.manager import CpuManager
from arl_node.result_spool import ResultSpool, SpooledResult
from support.api import brokering
from support.builders import EPOCH
from support.conditions import eventually
from support.cpu import managing
from support.endpoint import Asked, external
from support.executor import FakeExecutor
from support.rows import Rows, rows_in

TAKEN_AWAY = "update actions set state = 'queued', admitted_xid = pg_current_xact_id() where id = $1"
RESULT = "select convert_from(stdout, 'utf8') from action_results where id = $1"


@pytest_asyncio.fixture
async def rows(database: str) -> AsyncIterator[Rows]:
    async with rows_in(database) as rows:
        yield rows


def spool(manager: CpuManager | ApiManager, directory: Path, *reports: Any) -> None:
    """Write the results that this manager would have left."""
    results = [
        SpooledResult(fence=each.fence, epoch=manager.epoch, body=manager.encode_report(each)) for each in reports
    ]
    assert ResultSpool(directory, max_bytes=1 << 20).write(results) is None


def said(fence: Fence, text: bytes) -> ExecutionReport:
    return ExecutionReport(fence=fence, outcome="ok", exit_code=0, stdout=CapturedStream(text, len(text)), run_us=1000)


async def test_new_launcher_and_manager_replay_the_results_of_the_dead_ones(rows: Rows, tmp_path: Path) -> None:
    """The results of its own fences are kept, also in a lost environment. A fence that was lost keeps its outcome."""
    async with managing(rows, FakeExecutor(EPOCH), spool_dir=tmp_path, cpu_cores=4) as first:
        fresh, lost = await first.running(), await first.running()
        kept = await first.running(trajectory="t", environment_id=uuid4())
        path = first.manager._settings.spool_path
        spool(first.manager, path, said(kept, b"kept"), said(lost, b"late"), said(fresh, b"fresh"))
    await rows.execute(TAKEN_AWAY, lost.action_id)
    async with managing(rows, FakeExecutor(uuid4()), spool_dir=tmp_path) as second:
        assert second.manager.epoch != EPOCH
        assert [await rows.state(fence.action_id) for fence in (fresh, kept, lost)] == [
            ("settled", "ok", None),
            ("settled", "ok", None),
            ("queued", None, None),
        ]
        assert [await rows.value(RESULT, fence.action_id) for fence in (fresh, kept, lost)] == ["fresh", "kept", None]
        lost_at = await rows.value("select lost_at from environments where node_epoch = $1", EPOCH)
        assert lost_at is not None
    assert list(tmp_path.iterdir()) == []


async def test_new_broker_replays_the_response_and_sends_no_second_request(rows: Rows, tmp_path: Path) -> None:
    async with external() as there:

        async def answer(_: Asked) -> web.StreamResponse:
            await asyncio.Event().wait()
            return web.Response()

        there.answer = answer
        async with brokering(rows, there, grace_s=0.0, spool_dir=tmp_path) as first:
            action = await first.granted()
            await first.offer(action)
            await eventually(lambda: there.in_flight == 1)
            response = EndpointResponse(status=200, headers={}, body=b"answered", total_bytes=8)
            report = CallReport(fence=Fence(action, 1), outcome="ok", endpoint_response=response, attempts=1)
            spool(first.manager, first.manager._settings.spool_path, report)
        async with brokering(rows, there, spool_dir=tmp_path) as second:
            assert await second.end(action) == ("settled", "ok", None)
            assert await rows.value(RESULT, action) == "answered"
            assert len(there.asked) == 1


async def test_node_starts_nothing_while_results_do_not_fit_the_spool(rows: Rows, tmp_path: Path) -> None:
    async with managing(rows, spool_dir=tmp_path, spool_mib=1) as cpu:
        ended = await cpu.running()
        async with rows.pool.acquire() as connection, connection.transaction():
            await connection.fetch("select from actions where id = $1 for update", ended.action_id)
            cpu.executor.finish(ended, stdout=CapturedStream(bytes(2 << 20), 2 << 20))
            await eventually(lambda: cpu.manager._grants._settler.has_unspooled)
            waiting = await cpu.granted()
            await cpu.offer(waiting)
            await cpu.manager.poll()
            assert cpu.manager.fences == {ended}
        assert (await cpu.executor.next_start()).fence == Fence(waiting, 1)
        assert (await rows.until_state(ended.action_id, "settled"))["outcome"] == "ok"
