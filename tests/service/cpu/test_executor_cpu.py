"""Test that a program sees exactly its granted cores and memory, before and after a resize."""

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from arl_cpu.contract.launcher_client import LauncherClient
from support.conditions import eventually
from support.sandbox import Bench, a_bench, a_command, a_program, an_environment, living_descendants, sandboxes

CORES = tuple(sorted(os.sched_getaffinity(0)))
two_cores = pytest.mark.skipif(len(CORES) < 2, reason="one core")
node = pytest.param(
    "node", marks=pytest.mark.skipif(not (shutil.which("node") or "").startswith("/usr/"), reason="no node in /usr")
)
COUNTED_BY = {
    # coreutils' nproc prints OMP_NUM_THREADS where it is set.
    "shell": ("env", "-u", "OMP_NUM_THREADS", "nproc"),
    "python": ("python3", "-c", "import os; print(len(os.sched_getaffinity(0)))"),
    "node": ("node", "-p", "os.availableParallelism()"),
}
ALLOCATED_BY = {
    "shell": ("sh", "-c", "head -c ${MIB}M /dev/zero | tail -c 1G >/dev/null && echo $((MIB << 20))"),
    "python": ("python3", "-c", "import os; print(len(b'x' * (int(os.environ['MIB']) << 20)))"),
    "node": ("node", "-p", "Buffer.alloc(process.env.MIB << 20, 1).length"),
}
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "PYTHON_CPU_COUNT")
AWAIT_CORES = """
import os, subprocess, sys, threading, time
wanted = {int(core) for core in sys.stdin.read().split()}
thread = threading.Thread(target=time.sleep, args=(60,), daemon=True)
thread.start()
child = subprocess.Popen(["sleep", "60"])
seen = lambda: [os.sched_getaffinity(each) for each in (0, child.pid, thread.native_id)]
while seen() != [wanted] * 3:
    time.sleep(0.001)
print(subprocess.run(["env", "-u", "OMP_NUM_THREADS", "nproc"], capture_output=True, text=True).stdout, end="")
child.kill()
"""


@pytest.fixture(scope="module", params=("unsafe-local", *sandboxes(slow=("landlock",))))
async def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    async with a_bench(tmp_path_factory.mktemp("executor"), request.param) as bench:
        yield bench


def cpu_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


async def until_it_sleeps(bench: Bench) -> None:
    """Wait until the program runs and has started its `sleep` child."""
    launcher = bench.launcher
    assert launcher is not None
    await eventually(lambda: any(name_of(pid) == "sleep" for pid in living_descendants(launcher.pid)))


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


class TestCores:
    @pytest.mark.parametrize("program", ["shell", "python", node])
    @pytest.mark.parametrize("count", [1, pytest.param(2, marks=two_cores)])
    async def test_program_counts_exactly_the_granted_cores(self, bench: Bench, program: str, count: int) -> None:
        report = await bench.run(a_command(*COUNTED_BY[program], cores=CORES[:count], cpu_milli=1000 * count))
        assert report.stdout.data == b"%d\n" % count

    @two_cores
    @pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
    async def test_resize_reaches_every_process_and_thread_of_a_running_program(
        self, bench: Bench, before: int, after: int
    ) -> None:
        wanted = " ".join(map(str, CORES[:after])).encode()
        spec = a_program(AWAIT_CORES, stdin=wanted, cores=CORES[:before], cpu_milli=1000 * before)
        report = await bench.begin(spec)
        await until_it_sleeps(bench)
        assert await bench.resize(spec, 1000 * after, *CORES[:after])
        assert ((await report).outcome, (await report).stdout.data) == ("ok", b"%d\n" % after)

    @two_cores
    async def test_resize_to_another_core_releases_the_first_core(self, bench: Bench) -> None:
        spec = a_program(AWAIT_CORES, stdin=b"%d" % CORES[1], cores=CORES[:1])
        report = await bench.begin(spec)
        await until_it_sleeps(bench)
        assert await bench.resize(spec, 1000, CORES[1])
        assert (await report).stdout.data == b"1\n"

    async def test_resize_before_environment_creation_applies_when_the_action_starts(self, bench: Bench) -> None:
        spec = a_command(*COUNTED_BY["shell"], cores=CORES)
        report = bench.report_of(spec.fence)
        await bench.executor.start([spec])
        assert await bench.resize(spec, 500, CORES[0])
        assert (await report).stdout.data == b"1\n"

    @two_cores
    async def test_resize_to_missing_cores_is_not_confirmed_and_changes_nothing(self, bench: Bench) -> None:
        spec = a_program(AWAIT_CORES, stdin=b"%d" % CORES[0], cores=CORES)
        report = await bench.begin(spec)
        await until_it_sleeps(bench)
        assert not await bench.resize(spec, 1000, 10_000, seq=2)
        assert await bench.resize(spec, 1000, CORES[0], seq=1)
        assert (await report).stdout.data == b"1\n"

    @two_cores
    async def test_leftover_process_moves_to_the_cores_of_the_next_action(self, bench: Bench) -> None:
        environment = an_environment()
        await bench.run(a_command("sh", "-c", "sleep 60 & echo $! >pid", cores=CORES[:1], environment=environment))
        look = "import os; print(os.sched_getaffinity(int(open('pid').read())))"
        report = await bench.run(a_program(look, cores=CORES[1:2], environment=environment))
        assert report.stdout.data == b"{%d}\n" % CORES[1]
        await bench.destroy(environment.id)


class TestThreadVariables:
    @pytest.mark.parametrize(
        ("cpu_milli", "widest", "threads"), [(500, 0, 1), (1000, 0, 1), (2000, 0, 2), (2500, 0, 2), (1000, 4000, 4)]
    )
    async def test_thread_variables_match_the_grant_or_the_maximum_parallelism(
        self, bench: Bench, cpu_milli: int, widest: int, threads: int
    ) -> None:
        show = a_command("printenv", *THREADS, cpu_milli=cpu_milli, max_cpu_milli=widest)
        assert (await bench.run(show)).stdout.data.split() == [b"%d" % threads] * len(THREADS)

    async def test_thread_variable_set_by_the_action_is_kept(self, bench: Bench) -> None:
        show = a_command("printenv", *THREADS, cpu_milli=2000, env={"OMP_NUM_THREADS": "7"})
        assert (await bench.run(show)).stdout.data.split() == [b"7", *[b"2"] * (len(THREADS) - 1)]


class TestMemory:
    @pytest.mark.parametrize("program", ["shell", "python", node])
    async def test_memory_below_the_limit_works_and_above_is_limit_exceeded(self, bench: Bench, program: str) -> None:
        if bench.enforcement["memory"] != "enforced":
            pytest.skip("no memory cgroup")
        environment = an_environment(scope="ephemeral", memory_mib=256)
        for mib, outcome in ((100, ("ok", None)), (600, ("limit_exceeded", "memory"))):
            spec = a_command(*ALLOCATED_BY[program], env={"MIB": str(mib)}, environment=environment)
            report = await bench.run(spec)
            assert (report.outcome, report.reason) == outcome, report
            assert outcome[0] != "ok" or report.stdout.data == b"%d\n" % (mib << 20)


class TestBetweenActions:
    async def test_leftover_busy_process_gets_no_cpu_between_actions(self, bench: Bench) -> None:
        assert bench.launcher is not None
        others = living_descendants(bench.launcher.pid)
        environment = an_environment()
        spin = "import os\nif os.fork() == 0:\n    os.setsid()\n    while True: pass"
        report = await bench.run(a_program(spin, environment=environment))
        assert (report.outcome, report.leftover_processes) == ("ok", 1)
        busy = max(living_descendants(bench.launcher.pid) - others)  # its agent was there before it
        await bench.run(a_command("true"))  # what it used until it stood still is counted by then
        before = cpu_ns(busy)
        await bench.run(a_command("sleep", "0.3"))
        assert cpu_ns(busy) == before
        await bench.destroy(environment.id)


class TestReconnect:
    async def test_reconnected_manager_reads_the_current_size_of_a_running_attempt(self, tmp_path: Path) -> None:
        async with a_bench(tmp_path, "unsafe-local") as bench:
            spec = a_command("sleep", "30", cores=CORES[:1])
            await bench.begin(spec)
            assert await bench.resize(spec, 500, CORES[0], seq=2)
            assert await bench.resize(spec, 1000, CORES[0], seq=1)  # an older copy
            assert bench.launcher is not None
            manager = LauncherClient(bench.launcher.socket)
            (running,) = (await manager.connect()).running
            assert (running.cpu_milli, running.cores, running.amounts_seq) == (500, CORES[:1], 2)
            await manager.close()
