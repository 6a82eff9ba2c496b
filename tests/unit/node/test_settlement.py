"""Test that results wait on disk while the database does not accept them, and are replayed once."""

import asyncio
import json
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import pytest

from arl_api.calls import CallReport, EndpointResponse
from arl_core.domain.model import Fence
from arl_cpu.contract.executor import CapturedStream, ExecutionReport
from arl_cpu.contract.launcher_protocol import decode_report, encode_report
from arl_gpu.queue.score_jobs import ScoreReport
from arl_kit.metrics import Metrics
from arl_node.result_spool import ResultSpool
from arl_node.settlement import ReportSettler
from support.conditions import eventually


@dataclass
class Database:
    """The rows of a node. It refuses every statement while `error` is set, and answers none while `hangs`."""

    error: Exception | None = None
    hangs: bool = False
    lost: set[Fence] = field(default_factory=set)
    rejected: set[Fence] = field(default_factory=set)
    accepted: list[tuple[Fence, UUID]] = field(default_factory=list)
    statements: int = 0

    async def commit(self, reports: Sequence[ScoreReport], epoch: UUID) -> Set[Fence]:
        self.statements += 1
        while self.hangs:
            await asyncio.sleep(0.01)
        if self.error is not None:
            raise self.error
        if self.rejected.intersection(report.fence for report in reports):
            raise RuntimeError("a parameter does not fit its column")
        changed = [report.fence for report in reports if report.fence not in self.lost]
        self.accepted.extend((fence, epoch) for fence in changed)
        return frozenset(changed)


UNENCODABLE = "unencodable"


class ScoreCodec:
    def encode_report(self, report: ScoreReport) -> bytes:
        if report.scores == UNENCODABLE:
            raise ValueError("no encoding")
        return report.encode()

    def decode_report(self, data: bytes) -> ScoreReport:
        return ScoreReport.decode(data)


class Node:
    """One process of a manager, as far as it settles results."""

    def __init__(
        self, database: Database, directory: Path, *, max_bytes: int = 1 << 20, spool_after_s: float = 0.05
    ) -> None:
        self.epoch, self.metrics = uuid4(), Metrics()
        self.spool = ResultSpool(directory / "spool", max_bytes=max_bytes)
        self.settler = ReportSettler(
            database.commit,
            ScoreCodec(),
            self.spool,
            epoch=lambda: self.epoch,
            metrics=self.metrics,
            spool_after_s=spool_after_s,
        )
        self.tasks: list[asyncio.Task[None]] = []

    def end(self, *, size: int = 10, scores: str | None = None) -> Fence:
        report = ScoreReport(fence=Fence(uuid4(), 1), outcome="ok", scores=scores or "x" * size)
        self.tasks.append(asyncio.create_task(self.settler.settle(report)))
        return report.fence

    async def end_on_disk(self) -> Fence:
        fence = self.end()
        await eventually(lambda: fence in self.spool)
        return fence

    async def die(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)

    async def count(self, name: str) -> float:
        lines = (await self.metrics.exposition()).decode().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"tangram_{name} "))


@pytest.fixture
def database() -> Database:
    return Database(error=ConnectionRefusedError())


async def test_result_that_the_database_accepts_is_never_written(database: Database, tmp_path: Path) -> None:
    database.error = None
    node = Node(database, tmp_path)
    fence = node.end()
    await asyncio.wait(node.tasks)
    await node.settler.stop()
    assert (database.accepted, list(tmp_path.iterdir())) == ([(fence, node.epoch)], [])
    assert await node.count("results_spooled_total") == 0


async def test_result_is_on_disk_until_the_database_accepts_it(database: Database, tmp_path: Path) -> None:
    node = Node(database, tmp_path)
    fence = await node.end_on_disk()
    assert await node.count("spool_results") == 1
    assert await node.count("spool_bytes") > 0
    database.error = None
    await asyncio.wait(node.tasks)
    assert (database.accepted, list(tmp_path.iterdir())) == ([(fence, node.epoch)], [])
    assert [await node.count(f"results_{each}_total") for each in ("spooled", "replayed", "refused")] == [1, 1, 0]


async def test_result_is_written_if_a_statement_gets_no_response(database: Database, tmp_path: Path) -> None:
    database.error, database.hangs = None, True
    node = Node(database, tmp_path)
    await node.end_on_disk()
    await node.end_on_disk()
    database.hangs = False
    await asyncio.wait(node.tasks)
    assert (len(database.accepted), list(tmp_path.iterdir())) == (2, [])


async def test_result_that_cannot_be_encoded_does_not_keep_others_off_the_disk(
    database: Database, tmp_path: Path
) -> None:
    node = Node(database, tmp_path)
    broken = node.end(scores=UNENCODABLE)
    await eventually(lambda: node.settler.has_unspooled)
    await node.end_on_disk()
    assert broken not in node.spool
    database.error = None
    await asyncio.wait(node.tasks)
    assert (len(database.accepted), list(tmp_path.iterdir())) == (2, [])


async def test_next_process_replays_in_order_under_the_fence_and_the_old_epoch(
    database: Database, tmp_path: Path
) -> None:
    first = Node(database, tmp_path)
    fences = [await first.end_on_disk() for _ in range(5)]
    await first.die()
    second = Node(database, tmp_path)
    with pytest.raises(ConnectionRefusedError):
        await second.settler.replay()
    database.error = None
    third = Node(database, tmp_path)
    await third.settler.replay()
    assert database.accepted == [(fence, first.epoch) for fence in fences]
    await third.settler.replay()
    assert len(database.accepted) == 5, "once"
    assert await third.count("results_replayed_total") == 5
    assert list(tmp_path.iterdir()) == []


async def test_spooled_result_with_a_lost_fence_is_dropped_and_counted(database: Database, tmp_path: Path) -> None:
    first = Node(database, tmp_path)
    kept, lost = await first.end_on_disk(), await first.end_on_disk()
    await first.die()
    database.error, database.lost = None, {lost}
    second = Node(database, tmp_path)
    await second.settler.replay()
    assert database.accepted == [(kept, first.epoch)]
    assert [await second.count(f"results_{each}_total") for each in ("replayed", "refused")] == [1, 1]
    assert list(tmp_path.iterdir()) == []


async def test_refused_login_keeps_the_results_and_a_rejected_value_blocks_no_other(
    database: Database, tmp_path: Path
) -> None:
    first = Node(database, tmp_path)
    bad, good = await first.end_on_disk(), await first.end_on_disk()
    await first.die()
    second = Node(database, tmp_path)
    database.error = asyncpg.InvalidAuthorizationSpecificationError("role is not permitted to log in")
    with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError):
        await second.settler.replay()
    assert len(second.spool) == 2
    database.error, database.rejected = None, {bad}
    await second.settler.replay()
    assert database.accepted == [(good, first.epoch)]
    assert await second.count("results_damaged_total") == 1
    assert list(tmp_path.iterdir()) == []


async def test_full_spool_keeps_results_in_memory_and_says_so(database: Database, tmp_path: Path) -> None:
    node = Node(database, tmp_path, max_bytes=1000)
    old = await node.end_on_disk()
    node.end(size=1000)
    await eventually(lambda: node.settler.has_unspooled)
    assert old in node.spool
    assert await node.count("results_unspooled_total") == 1
    database.error = None
    await asyncio.wait(node.tasks)
    assert (len(database.accepted), node.settler.has_unspooled) == (2, False)
    assert list(tmp_path.iterdir()) == []


async def test_results_that_cannot_be_written_settle_from_memory(database: Database, tmp_path: Path) -> None:
    (tmp_path / "spool").touch()
    node = Node(database, tmp_path)
    node.end()
    await eventually(lambda: node.settler.has_unspooled)
    database.error = None
    await asyncio.wait(node.tasks)
    assert (len(database.accepted), node.settler.has_unspooled) == (1, False)


async def test_unreadable_results_block_neither_the_start_nor_other_results(database: Database, tmp_path: Path) -> None:
    await Node(database, tmp_path / ("x" * 300)).settler.replay()  # no file can have this name
    first = Node(database, tmp_path)
    bad, good = await first.end_on_disk(), await first.end_on_disk()
    await first.die()
    [file] = (tmp_path / "spool").glob(f"*.{bad.action_id}.*")
    file.unlink()
    file.mkdir()
    database.error = None
    second = Node(database, tmp_path)
    await second.settler.replay()
    assert database.accepted == [(good, first.epoch)]
    assert await second.count("results_damaged_total") == 1
    assert list((tmp_path / "spool").iterdir()) == [file]


async def test_stopped_process_writes_results_that_are_not_settled(database: Database, tmp_path: Path) -> None:
    database.error, database.hangs = None, True
    node = Node(database, tmp_path, spool_after_s=600)
    fence = node.end()
    await eventually(lambda: database.statements == 1)
    await node.settler.stop()
    assert fence in node.spool
    await node.die()


async def test_cancelled_settling_does_not_count_as_accepted(database: Database, tmp_path: Path) -> None:
    node = Node(database, tmp_path, spool_after_s=600)
    database.hangs = True
    fence = node.end()
    await eventually(lambda: database.statements == 1)
    await node.die()
    await node.settler.stop()
    assert fence in node.spool


def test_spooled_reports_are_read_as_they_were() -> None:
    fence = Fence(uuid4(), 7)
    response = EndpointResponse(status=200, headers={"a": "b"}, body=bytes(range(256)), total_bytes=300)
    call = CallReport(fence=fence, outcome="ok", endpoint_response=response, attempts=2, run_us=5, timeline="{}")
    assert CallReport.decode(call.encode()) == call
    failed = CallReport(fence=fence, outcome="infra_error", reason="r", message="m\x00\ud800")
    assert CallReport.decode(failed.encode()) == failed
    score = ScoreReport(fence=fence, outcome="ok", scores="[1]", cpu_us=3, timeline="{}")
    assert ScoreReport.decode(score.encode()) == score
    execution = ExecutionReport(
        fence=fence,
        outcome="ok",
        stdout=CapturedStream(bytes(range(256)), 999),
        files={"f": b"\xff"},
        missing_files=("g",),
        enforcement={"memory": "enforced"},
    )
    assert decode_report(json.loads(json.dumps(encode_report(execution)))) == execution
