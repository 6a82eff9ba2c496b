"""Test live output and stdin of running attempts, with every executor."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from arl_core.domain.model import Fence
from arl_cpu.contract.executor import ExecSpec
from arl_cpu.contract.launcher_client import LauncherClient
from arl_cpu.contract.simulated_executor import SimulatedExecutor
from support.conditions import eventually
from support.sandbox import Bench, a_bench, a_command, an_environment, sandboxes

REAL = ("unsafe-local", *sandboxes(slow=("landlock",)))
KEEP = 100_000


@pytest.fixture(scope="module", params=REAL)
async def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    async with a_bench(tmp_path_factory.mktemp("executor"), request.param) as bench:
        yield bench


async def until_said(bench: Bench, spec: ExecSpec, size: int) -> bytes:
    seen = b""
    while len(seen) < size:
        output = await bench.executor.poll_output(spec.fence, stdout=len(seen), stderr=0)
        assert output is not None
        seen += output.stdout.data
    return seen


def files_of(bench: Bench) -> int:
    assert bench.launcher is not None
    return len(os.listdir(f"/proc/{bench.launcher.pid}/fd"))


class TestPollOutput:
    async def test_output_is_readable_during_the_run_and_polls_wait(self, real: Bench) -> None:
        spec = a_command("sh", "-c", "echo one; read x; echo $x", stdin_open=True)
        report = await real.begin(spec)
        assert await until_said(real, spec, 4) == b"one\n"
        more = asyncio.ensure_future(real.executor.poll_output(spec.fence, stdout=4, stderr=0))
        assert (await real.executor.feed_stdin(spec.fence, b"two\n", offset=None, end=False)).status == "taken"
        output = await more
        assert output is not None
        assert output.stdout.data == b"two\n"
        assert (await report).stdout.data == b"one\ntwo\n"

    async def test_output_of_an_ended_attempt_is_readable_until_acknowledged(self, tmp_path: Path) -> None:
        async with a_bench(tmp_path, "unsafe-local") as bench:
            assert bench.launcher is not None
            manager = LauncherClient(bench.launcher.socket)
            await manager.connect()
            spec = a_command("echo", "kept")
            await manager.start([spec])
            await anext(manager.events())
            output = await manager.poll_output(spec.fence, stdout=1, stderr=0)
            assert output is not None
            assert (output.ended, output.stdout.data) == (True, b"ept\n")
            await manager.acknowledge([spec.fence])
            assert await manager.poll_output(spec.fence, stdout=0, stderr=0) is None
            assert await manager.poll_output(Fence(uuid4(), 1), stdout=0, stderr=0) is None
            await manager.close()

    async def test_output_past_the_retained_size_is_only_counted(self, real: Bench) -> None:
        script = f"head -c {3 * KEEP} /dev/zero; read x; head -c {KEEP} /dev/zero; echo . >&2; read x"
        spec = a_command("sh", "-c", script, output_keep_bytes=KEEP, stdin_open=True)
        report = await real.begin(spec)
        assert await until_said(real, spec, KEEP) == bytes(KEEP)
        output = await real.executor.poll_output(spec.fence, stdout=KEEP, stderr=0)
        assert output is not None
        told = output.stdout.total_bytes
        assert (output.stdout.data, output.stdout.retained_bytes) == (b"", KEEP)
        assert KEEP < told <= 3 * KEEP
        await real.executor.feed_stdin(spec.fence, b"\n", offset=None, end=False)
        output = await real.executor.poll_output(spec.fence, stdout=told, stderr=0)
        assert output is not None
        assert (output.stdout.data, output.stderr.data) == (b"", b".\n"), "more of stdout is no news"
        await real.executor.feed_stdin(spec.fence, b"\n", offset=None, end=False)
        assert (await report).stdout.total_bytes == 4 * KEEP

    async def test_cancelled_output_polls_do_not_affect_the_attempt(self, tmp_path: Path) -> None:
        async with a_bench(tmp_path, "unsafe-local") as bench:
            spec = a_command("sh", "-c", "echo ready; read x; echo done", stdin_open=True)
            report = await bench.begin(spec)
            await until_said(bench, spec, 6)
            for _ in range(100):
                waiting = asyncio.ensure_future(bench.executor.poll_output(spec.fence, stdout=6, stderr=0))
                await asyncio.sleep(0)
                waiting.cancel()
            await bench.executor.feed_stdin(spec.fence, b"\n", offset=None, end=False)
            assert (await report).stdout.data == b"ready\ndone\n"


class TestFeedStdin:
    async def test_fed_input_follows_initial_stdin_and_ends_on_request(self, real: Bench) -> None:
        spec = a_command("cat", stdin=b"first ", stdin_open=True)
        report = await real.begin(spec)
        await until_said(real, spec, 6)
        fed = await real.executor.feed_stdin(spec.fence, b"then\xff", offset=0, end=True)
        assert (fed.status, fed.offset) == ("taken", 5)
        assert (await report).stdout.data == b"first then\xff"

    async def test_fed_stdin_can_be_opened_by_path(self, real: Bench) -> None:
        spec = a_command("sh", "-c", "echo ready; cat /dev/stdin", stdin_open=True)
        report = await real.begin(spec)
        await until_said(real, spec, 6)
        await real.executor.feed_stdin(spec.fence, b"named", offset=None, end=True)
        assert (await report).stdout.data == b"ready\nnamed"

    async def test_overlapping_input_is_delivered_once_and_a_gap_is_refused(self, real: Bench) -> None:
        spec = a_command("cat", stdin_open=True)
        report = await real.begin(spec)
        for data, offset in ((b"abc", 0), (b"abc", 0), (b"cde", 2)):
            assert (await real.executor.feed_stdin(spec.fence, data, offset=offset, end=False)).status == "taken"
        fed = await real.executor.feed_stdin(spec.fence, b"x", offset=9, end=False)
        assert (fed.status, fed.offset) == ("gap", 5)
        for _ in range(2):
            assert (await real.executor.feed_stdin(spec.fence, b"", offset=5, end=True)).status in ("taken", "absent")
        assert (await report).stdout.data == b"abcde"

    async def test_input_for_a_program_that_does_not_read_is_bounded(self, real: Bench) -> None:
        spec = a_command("sleep", "30", stdin_open=True)
        report = await real.begin(spec)
        answers = [
            (await real.executor.feed_stdin(spec.fence, bytes(1 << 20), offset=None, end=False)) for _ in range(3)
        ]
        assert [fed.status for fed in answers[1:]] == ["full", "full"]
        assert (await real.run(a_command("echo", "served"))).stdout.data == b"served\n"
        await real.executor.kill([spec.fence])
        assert (await report).outcome == "cancelled"

    async def test_program_that_closed_stdin_accepts_no_more_input(self, real: Bench) -> None:
        spec = a_command("sh", "-c", "exec <&-; echo closed; sleep 30", stdin_open=True)
        report = await real.begin(spec)
        await until_said(real, spec, 7)

        async def is_closed() -> bool:
            return (await real.executor.feed_stdin(spec.fence, b"x", offset=None, end=False)).status == "closed"

        await eventually(is_closed)
        await real.executor.kill([spec.fence])
        await report

    async def test_input_is_refused_for_unopened_stdin_and_ended_attempts(self, real: Bench) -> None:
        spec = a_command("sleep", "30")
        report = await real.begin(spec)
        assert (await real.executor.feed_stdin(spec.fence, b"x", offset=None, end=False)).status == "unopened"
        await real.executor.kill([spec.fence])
        await report
        assert (await real.executor.feed_stdin(spec.fence, b"x", offset=None, end=False)).status == "absent"

    async def test_feeding_leaves_no_open_file_in_the_launcher(self, real: Bench) -> None:
        environment = an_environment()
        await real.run(a_command("true", environment=environment))
        before = files_of(real)
        for script in ("true", "cat", "exec <&-; sleep 0.01"):
            spec = a_command("sh", "-c", script, environment=environment, stdin_open=True)
            report = await real.begin(spec)
            await real.executor.feed_stdin(spec.fence, b"x" * 200_000, offset=0, end=True)
            await report
        assert files_of(real) == before
        await real.destroy(environment.id)


class TestSimulated:
    """The simulated executor reads no input and writes no output, and follows the same contract."""

    async def test_simulated_attempt_reports_its_end_without_output(self) -> None:
        executor = SimulatedExecutor()
        bench = Bench(executor, await executor.connect())
        spec = a_command("sleep", "0.05", stdin_open=True)
        report = await bench.begin(spec)
        assert (await executor.feed_stdin(spec.fence, b"abc", offset=None, end=False)).offset == 3
        assert (await executor.feed_stdin(spec.fence, b"abc", offset=0, end=False)).offset == 3
        output = await executor.poll_output(spec.fence, stdout=0, stderr=0)
        assert output is not None
        assert (output.ended, output.stdout.total_bytes) == (True, 0)
        await report
        await bench.close()

    async def test_simulated_run_time_follows_the_allocated_cores(self) -> None:
        executor = SimulatedExecutor()
        bench = Bench(executor, await executor.connect())
        alone = await bench.begin(a_command("work", "0.1", "0.5", "4"))
        helped = await bench.begin(a_command("work", "10", "1.0", "100", cpu_milli=1_000_000))
        grown, shrunk = a_command("work", "60", "1.0", "1000"), a_command("work", "0.1", "1.0", "1")
        ends = [alone, helped, await bench.begin(grown), await bench.begin(shrunk)]
        assert await bench.resize(grown, 1_000_000)
        assert await bench.resize(shrunk, 500)
        reports = await asyncio.gather(*ends)
        await bench.close()
        least = [100_000, 100_000, 60_000, 190_000]
        assert all(us <= each.run_us < 5_000_000 for us, each in zip(least, reports, strict=True))
        assert [each.cpu_us / 1e6 for each in reports] == pytest.approx([0.1, 10, 60, 0.1], rel=0.01)
