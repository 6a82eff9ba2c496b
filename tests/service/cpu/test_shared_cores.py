"""Test attempts that share cores on a real launcher: time limits, cores, weights and the cost of samples."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from arl_core.control.cpu_weights import CpuShareState, CpuWeightRange, cpu_weights
from arl_core.domain.model import CpuSharing
from arl_cpu.contract.executor import ExecSpec
from support.conditions import eventually
from support.sandbox import (
    Bench,
    a_bench,
    a_command,
    a_program,
    an_environment,
    cgroups_of,
    living_descendants,
    sandboxes,
    shared,
)

CORES = tuple(sorted(os.sched_getaffinity(0)))[:2]
SPIN = "while True: pass"
MANY_THREADS = """
import threading, time
for _ in range(400):
    threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
print("started", flush=True)
time.sleep(100)
"""
with_two_cores = pytest.mark.skipif(len(CORES) < 2, reason="one core")


def burning(cpu_s: float) -> str:
    return f"import time\nwhile time.process_time() < {cpu_s}: pass"


@pytest.fixture(scope="module", params=["unsafe-local", *sandboxes(slow=("landlock",))])
async def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    async with a_bench(tmp_path_factory.mktemp("executor"), request.param) as bench:
        yield bench


async def cancel(bench: Bench, *specs: ExecSpec) -> None:
    await bench.executor.kill([spec.fence for spec in specs])
    for spec in specs:
        assert (await bench.report_of(spec.fence)).outcome == "cancelled"


def processes_of(bench: Bench, source: str) -> list[int]:
    """Return the running processes whose command line contains the text."""
    assert bench.launcher is not None
    return [pid for pid in living_descendants(bench.launcher.pid) if source in _command_line(pid)]


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


class TestTimeLimits:
    async def test_programs_that_share_cores_do_not_reach_their_timeout_by_waiting(self, bench: Bench) -> None:
        specs = [a_program(burning(0.3), timeout_s=0.6, **shared()) for _ in range(3 * len(CORES))]
        reports = await asyncio.gather(*[await bench.begin(spec) for spec in specs])
        assert {report.outcome for report in reports} == {"ok"}
        assert max(report.run_us for report in reports) > 600_000
        if bench.enforcement["cpu_weight"] == "enforced":  # without a cgroup, samples are rare
            assert all(250_000 < (report.counted_us or 0) < 600_000 for report in reports)

    @pytest.mark.slow
    async def test_sixty_four_programs_of_a_second_end_in_a_limit_of_ten(self, bench: Bench) -> None:
        specs = [a_program(burning(1.0), timeout_s=10.0, **shared()) for _ in range(64)]
        reports = await asyncio.gather(*[await bench.begin(spec) for spec in specs])
        assert {report.outcome for report in reports} == {"ok"}

    async def test_program_that_sleeps_or_spins_for_ever_ends_within_a_second_of_its_limit(self, bench: Bench) -> None:
        sleeps = a_command("sleep", "60", timeout_s=0.7, **shared())
        spins = a_program(SPIN, timeout_s=0.7, **shared())
        for report in await asyncio.gather(await bench.begin(sleeps), await bench.begin(spins)):
            assert (report.outcome, report.reason) == ("user_timeout", "timeout_s")
            assert 700_000 <= (report.counted_us or 0) < 1_700_000

    @pytest.mark.slow
    async def test_spinning_programs_end_within_a_second_of_counted_time_under_load(self, bench: Bench) -> None:
        specs = [a_program(SPIN, timeout_s=0.5, **shared()) for _ in range(3 * len(CORES))]
        for report in await asyncio.gather(*[await bench.begin(spec) for spec in specs]):
            assert (report.outcome, report.reason) == ("user_timeout", "timeout_s")
            assert (report.counted_us or 0) < 1_500_000

    @pytest.mark.parametrize("is_shared", [True, False])
    async def test_wall_timeout_bounds_real_time(self, bench: Bench, is_shared: bool) -> None:
        fields = shared() if is_shared else {}
        report = await bench.run(a_command("sleep", "60", timeout_s=30.0, wall_timeout_s=0.3, **fields))
        assert (report.outcome, report.reason) == ("user_timeout", "wall_timeout_s")
        assert 300_000 <= report.run_us < 1_300_000

    async def test_counted_time_of_an_exclusive_attempt_is_its_run_time(self, bench: Bench) -> None:
        report = await bench.run(a_command("sleep", "0.1"))
        assert report.counted_us == report.run_us


@with_two_cores
class TestCores:
    async def test_shared_attempts_run_on_the_cores_that_the_manager_leaves_them(self, bench: Bench) -> None:
        await bench.executor.set_shared_cores(CORES)
        first = a_command("sleep", "61.1", **shared(), cores=(CORES[0],))
        second = a_command("sleep", "61.2", **shared())
        await bench.begin(first)
        await eventually(lambda: _cores(bench, "sleep 61.1") == {frozenset(CORES)})
        await bench.executor.set_shared_cores(CORES[:1])
        alone = a_command("sleep", "61.3", cores=CORES[1:])
        await bench.begin(alone)
        await bench.begin(second)
        await eventually(lambda: _cores(bench, "sleep 61.3") == {frozenset(CORES[1:])})
        await eventually(lambda: _cores(bench, "sleep 61.2") == {frozenset(CORES[:1])})
        assert _cores(bench, "sleep 61.1") == {frozenset(CORES[:1])}
        await cancel(bench, alone)
        await bench.executor.set_shared_cores(CORES)
        await eventually(lambda: _cores(bench, "sleep 61.") == {frozenset(CORES)})
        await cancel(bench, first, second)

    @pytest.mark.slow
    async def test_shared_attempt_has_a_quota_only_with_a_limit(self, bench: Bench) -> None:
        if bench.enforcement["cpu_quota"] != "enforced":
            pytest.skip("no quota")
        used = [await _use(bench, shared(limit_milli=limit)) for limit in (None, 200)]
        assert used[0] > 0.5
        assert used[1] < 0.35


def _cores(bench: Bench, command: str) -> set[frozenset[int]]:
    return {frozenset(os.sched_getaffinity(pid)) for pid in processes_of(bench, command)}


async def _use(bench: Bench, fields: dict[str, object]) -> float:
    """Return the part of a core that a spinning program gets in a second of real time."""
    report = await bench.run(a_program(SPIN, timeout_s=60.0, wall_timeout_s=1.0, **fields))
    return report.cpu_us / report.run_us


@pytest.mark.slow
async def test_short_class_gets_more_of_the_cores_than_a_long_one(bench: Bench) -> None:
    if bench.enforcement["cpu_weight"] != "enforced":
        pytest.skip("no weights")
    await bench.executor.set_shared_cores(CORES[:1])
    limits = shared(wall_timeout_s=3.0, timeout_s=60.0)
    short, long = (replace(a_program(SPIN, **limits), expected_cpu_s=expected_s) for expected_s in (4.0, 10_000.0))
    reports = await asyncio.gather(await bench.begin(short), await bench.begin(long))
    await bench.executor.set_shared_cores(CORES)
    states = {
        name: CpuShareState(guarantee_milli=100, expected_cpu_s=expected_s, used_cpu_s=used_s)
        for name, expected_s, used_s in (("short", 4.0, 1.2), ("long", 10_000.0, 0.3))
    }
    wanted = cpu_weights(states, cores=1, weights=CpuWeightRange(2, 1 << 18, 1024))
    assert reports[0].cpu_us / reports[1].cpu_us == pytest.approx(wanted["short"] / wanted["long"], rel=0.4)


@pytest.mark.slow
async def test_running_attempt_gets_more_of_the_cores_once_its_trajectory_is_critical(bench: Bench) -> None:
    if bench.enforcement["cpu_weight"] != "enforced":
        pytest.skip("no weights")
    await bench.executor.set_shared_cores(CORES[:1])
    limits = shared(wall_timeout_s=3.0, timeout_s=60.0)
    critical, other = (replace(a_program(SPIN, **limits), expected_cpu_s=10_000.0) for _ in range(2))
    running = [await bench.begin(critical), await bench.begin(other)]
    await bench.executor.set_critical({critical.fence: True})
    reports = await asyncio.gather(*running)
    await bench.executor.set_shared_cores(CORES)
    assert reports[0].cpu_us / reports[1].cpu_us > 2.0  # 1.0 with equal weights


async def test_weights_of_exclusive_cores_and_of_all_sandboxes_grow_with_the_cores(bench: Bench) -> None:
    assert bench.launcher is not None
    if bench.enforcement["cpu_weight"] != "enforced":
        pytest.skip("no weights")
    spec = a_command("sleep", "60", cpu_milli=1500, cores=CORES)
    await bench.begin(spec)
    await eventually(lambda: bool(processes_of(bench, "sleep 60")))
    [group] = [each for each in cgroups_of(bench.launcher) if (each / "cpu.shares").exists()] or [None]
    if group is not None:
        node = len(os.sched_getaffinity(bench.launcher.pid))
        assert [int((path / "cpu.shares").read_text()) for path in (group, group.parent)] == [1536, 102 * node]
    await cancel(bench, spec)


class TestUnusedCores:
    @pytest.mark.slow
    async def test_sleeping_attempts_report_all_but_their_guarantee_and_spinning_ones_nothing(
        self, bench: Bench
    ) -> None:
        bench.unused_milli.clear()
        sleeping = [a_command("sleep", "60", **shared()) for _ in range(4)]
        for spec in sleeping:
            await bench.begin(spec)
        await eventually(lambda: bench.unused_milli[-1:] == [1600])
        await cancel(bench, *sleeping)
        await eventually(lambda: bench.unused_milli[-1] == 0)
        bench.unused_milli.clear()
        for report in await asyncio.gather(
            *[await bench.begin(a_program(SPIN, wall_timeout_s=2.0, **shared())) for _ in range(3 * len(CORES))]
        ):
            assert report.reason == "wall_timeout_s"
        assert all(milli < 500 for milli in bench.unused_milli)

    @pytest.mark.slow
    async def test_declared_minimum_is_not_reported(self, bench: Bench) -> None:
        bench.unused_milli.clear()
        declared = CpuSharing(guarantee_milli=100, is_declared=True)
        await bench.run(a_command("sleep", "60", sharing=declared, cpu_milli=500, wall_timeout_s=2.0))
        assert bench.unused_milli == []


@pytest.mark.slow
async def test_program_with_many_sleeping_threads_does_not_make_samples_expensive(bench: Bench) -> None:
    assert bench.launcher is not None
    environment = an_environment(scope="ephemeral", pids=600, memory_mib=512)
    hostile = a_program(MANY_THREADS, environment=environment, **shared())
    await bench.begin(hostile)
    output = await bench.executor.poll_output(hostile.fence, stdout=0, stderr=0)
    assert output is not None
    began, used = time.monotonic(), _cpu_s(bench.launcher.pid)
    await asyncio.sleep(3.0)  # what is measured is a rate
    assert (_cpu_s(bench.launcher.pid) - used) / (time.monotonic() - began) < 0.03
    await cancel(bench, hostile)


@pytest.mark.slow
async def test_no_sample_is_taken_without_a_shared_attempt(bench: Bench) -> None:
    assert bench.launcher is not None
    await bench.run(a_command("true", **shared()))
    spec = a_command("sleep", "60")
    await bench.begin(spec)
    await eventually(lambda: bool(processes_of(bench, "sleep 60")))
    launcher = bench.launcher.pid

    async def is_quiet() -> bool:
        switches = _voluntary_switches(launcher)
        await asyncio.sleep(1.0)  # in which a sampler would wake up at least twice
        return _voluntary_switches(launcher) - switches < 2

    await eventually(is_quiet)
    await cancel(bench, spec)


def _cpu_s(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def _voluntary_switches(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])
