"""Test actions that exceed limits: each gets the right outcome and leaves no process behind."""

import os
import signal
from pathlib import Path

import pytest

from arl_cpu.contract.executor import EnvironmentSpec
from support.conditions import eventually
from support.sandbox import Bench, a_command, a_program, agent_of, an_environment, living_descendants

OPEN_FILES = """
import os
def is_open(number):
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
print([number for number in range(256) if is_open(number)])
"""
COUNT = "ls -d /proc/[0-9]* | wc -l"
FORK_BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
DAEMON_BOMB = """
import os
while True:
    try:
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                continue
            os._exit(0)
    except OSError:
        pass
"""
MEMORY_BOMB = "held = [bytes([1]) * (1 << 20) for _ in range(1 << 20)]"
STUBBORN = """
import os, signal, time
for number in range(1, 64):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
if os.fork() == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
while True:
    time.sleep(60)
"""
DAEMON = """
import os, sys, time
print("started", flush=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
"""


@pytest.mark.parametrize("scope", ["ephemeral", "trajectory"])
class TestTimeout:
    """After each test the environment works and contains only the agent and the counting command."""

    @pytest.mark.parametrize("bomb", [FORK_BOMB, DAEMON_BOMB], ids=["fork", "setsid and double fork"])
    async def test_fork_bomb_is_killed_and_its_environment_survives(
        self, sandbox: Bench, scope: str, bomb: str
    ) -> None:
        environment = an_environment(scope=scope)
        report = await sandbox.run(a_program(bomb, environment=environment, timeout_s=0.7))
        assert (report.outcome in ends_of_a_bomb(sandbox), report.environment_lost) == (True, False), report
        assert report.run_us < 3_000_000
        after = await sandbox.run(a_command("sh", "-c", COUNT, environment=environment))
        assert int(after.stdout.data) <= 4
        assert sandbox.launcher is not None
        assert len(living_descendants(sandbox.launcher.pid)) <= 4  # zygote, agent, and what starts an agent
        await sandbox.destroy(environment.id)

    async def test_program_that_ignores_signals_is_killed_at_its_timeout(self, sandbox: Bench, scope: str) -> None:
        environment = an_environment(scope=scope)
        report = await sandbox.run(a_program(STUBBORN, environment=environment, timeout_s=0.3))
        assert (report.outcome, report.environment_lost) == ("user_timeout", False)
        await sandbox.destroy(environment.id)

    async def test_daemon_is_killed_at_the_timeout_of_its_action(self, sandbox: Bench, scope: str) -> None:
        environment = an_environment(scope=scope)
        report = await sandbox.run(a_program(DAEMON + "time.sleep(600)", environment=environment, timeout_s=0.3))
        assert (report.outcome, report.stdout.data) == ("user_timeout", b"started\n")
        after = await sandbox.run(a_command("sh", "-c", COUNT, environment=environment))
        assert int(after.stdout.data) <= 4
        assert sandbox.launcher is not None
        assert len(living_descendants(sandbox.launcher.pid)) <= 4  # zygote, agent, and what starts an agent
        await sandbox.destroy(environment.id)


class TestUnusualInput:
    async def test_command_starts_with_only_three_open_files(self, sandbox: Bench) -> None:
        report = await sandbox.run(a_command("python3", "-c", OPEN_FILES, stdin=b"x"))
        assert report.stdout.data == b"[0, 1, 2]\n", report

    async def test_invalid_text_in_a_spec_is_a_user_error(self, sandbox: Bench) -> None:
        lone = "\ud800"
        for spec in (
            a_program(f"print('{lone}')"),
            a_command("echo", lone),
            a_command("true", files={lone: b""}),
            a_command("true", files={f"../{lone}": b""}),
            a_command("echo", "a\0b"),
            a_command("echo", env={"A=B": "c"}),
            a_command("echo", cwd="/nowhere"),
            a_command("echo", "x" * 200_000),
        ):
            assert (await sandbox.run(spec)).outcome == "user_error"

    async def test_thousands_of_long_missing_files_are_all_reported(self, sandbox: Bench) -> None:
        names = tuple(f"{number:0200}" for number in range(3000))
        report = await sandbox.run(a_command("true", fetch=(*names, "\ud800")))
        assert (report.outcome, report.missing_files) == ("ok", (*names, "\ud800"))

    async def test_hundred_small_files_are_fetched(self, sandbox: Bench) -> None:
        names = tuple(f"d/{number}" for number in range(100))
        report = await sandbox.run(a_command("true", files=dict.fromkeys(names, b"x"), fetch=names))
        assert report.files == dict.fromkeys(names, b"x")


HEADLESS = """
import ctypes, platform, threading, time
threading.Thread(target=time.sleep, args=(1000,)).start()
ctypes.CDLL(None).syscall(60 if platform.machine() == "x86_64" else 93, 0)
"""
"""A process without its first thread. It looks like a zombie but still runs."""


HEADLESS_MEMORY_BOMB = """
import ctypes, platform, threading, time
def fill():
    kept = []
    while True:
        kept.append(bytes([1]) * (1 << 20))
        time.sleep(0.001)
threading.Thread(target=fill).start()
ctypes.CDLL(None).syscall(60 if platform.machine() == "x86_64" else 93, 0)
"""


class TestKillStages:
    @pytest.mark.parametrize("bomb", [FORK_BOMB, DAEMON_BOMB], ids=["fork", "setsid and double fork"])
    async def test_fork_bomb_with_a_tenth_of_a_core_is_killed(self, sandbox: Bench, bomb: str) -> None:
        environment = an_environment()
        report = await sandbox.run(a_program(bomb, environment=environment, timeout_s=0.7, cpu_milli=100))
        assert (report.outcome in ends_of_a_bomb(sandbox), report.environment_lost) == (True, False), report
        await sandbox.destroy(environment.id)

    @pytest.mark.slow
    async def test_stopped_agent_loses_its_environment_but_keeps_the_outcome(self, sandbox: Bench) -> None:
        environment = an_environment()
        await sandbox.run(a_command("true", environment=environment))
        assert sandbox.launcher is not None
        agent = agent_of(sandbox.launcher)
        report = await sandbox.begin(a_command("sleep", "60", environment=environment, timeout_s=2))
        await eventually(lambda: runs_and_is_told(agent, "sleep"))
        os.kill(agent, signal.SIGSTOP)
        ended = await report
        assert (ended.outcome, ended.environment_lost) == ("user_timeout", True)
        again = await sandbox.run(a_command("true", environment=environment))
        assert again.outcome == "ok"  # a new one; it is the manager that refuses to make it silently
        await sandbox.destroy(environment.id)

    async def test_process_without_its_first_thread_is_killed_at_its_timeout(
        self, sandbox: Bench, trajectory: EnvironmentSpec
    ) -> None:
        report = await sandbox.run(a_program(HEADLESS, environment=trajectory, timeout_s=0.7))
        assert (report.outcome, report.environment_lost) == ("user_timeout", False)


class TestOutput:
    async def test_ten_megabytes_of_output_are_drained_and_marked_truncated(self, sandbox: Bench) -> None:
        report = await sandbox.run(
            a_program("import sys; sys.stdout.write('x' * 10_000_000); print('e', file=sys.stderr)")
        )
        assert (report.outcome, report.stdout.is_truncated, report.stdout.total_bytes) == ("ok", True, 10_000_000)
        assert (len(report.stdout.data), report.stderr.data) == (1 << 20, b"e\n")

    async def test_output_flood_is_limit_exceeded(self, sandbox: Bench) -> None:
        report = await sandbox.run(a_command("cat", "/dev/zero", output_kill_bytes=8 << 20))
        assert (report.outcome, report.reason) == ("limit_exceeded", "output")

    async def test_daemon_with_open_stdout_does_not_delay_the_result(self, sandbox: Bench) -> None:
        report = await sandbox.run(a_program(DAEMON))
        assert (report.outcome, report.leftover_processes) == ("ok", 0)
        assert report.run_us < 2_000_000


class TestMemory:
    async def test_memory_bomb_is_limit_exceeded_and_keeps_the_environment(
        self, sandbox: Bench, trajectory: EnvironmentSpec
    ) -> None:
        report = await sandbox.run(a_program(MEMORY_BOMB, environment=trajectory))
        assert (report.outcome, report.reason, report.environment_lost) == ("limit_exceeded", "memory", False)
        assert (await sandbox.run(a_command("true", environment=trajectory))).outcome == "ok"

    async def test_memory_of_a_process_without_its_first_thread_is_limited(self, sandbox: Bench) -> None:
        report = await sandbox.run(a_program(HEADLESS_MEMORY_BOMB, timeout_s=25))
        assert (report.outcome, report.reason) == ("limit_exceeded", "memory")

    async def test_memory_limit_applies_to_the_sum_of_all_children(self, sandbox: Bench) -> None:
        children = "import os, sys, time\n" + (
            "for _ in range(8):\n"
            "    if os.fork() == 0:\n"
            "        held = [bytes([1]) * (1 << 20) for _ in range(40)]\n"
            "        time.sleep(20)\n"
            "        os._exit(0)\n"
            "sys.exit(any(os.wait()[1] for _ in range(8)))\n"
        )
        report = await sandbox.run(a_program(children, timeout_s=25))
        assert (report.outcome, report.reason) == ("limit_exceeded", "memory")

    async def test_action_has_a_higher_oom_score_than_the_agent(
        self, sandbox: Bench, trajectory: EnvironmentSpec
    ) -> None:
        await sandbox.run(a_command("true", environment=trajectory))
        assert sandbox.launcher is not None
        agent = agent_of(sandbox.launcher)
        running = await sandbox.begin(a_command("sleep", "60", timeout_s=2, environment=trajectory))
        await eventually(lambda: len(living_descendants(agent)) == 1)
        (action,) = living_descendants(agent)

        def scores() -> list[str]:
            return [Path(f"/proc/{pid}/oom_score_adj").read_text().strip() for pid in (agent, action)]

        # While it makes the action's process, the agent has the action's.
        await eventually(lambda: scores() == ["0", "1000"], timeout_s=1.5)
        await running

    async def test_memory_bomb_does_not_affect_another_environment(
        self, sandbox: Bench, trajectory: EnvironmentSpec
    ) -> None:
        neighbour = await sandbox.begin(a_command("sleep", "0.5", environment=trajectory))
        assert (await sandbox.run(a_program(MEMORY_BOMB))).outcome == "limit_exceeded"
        assert (await neighbour).outcome == "ok"


class TestDisk:
    @pytest.mark.parametrize("place", ["$HOME", "$TMPDIR", "/dev/shm"])
    async def test_disk_limit_applies_to_every_writable_directory(
        self, sandbox: Bench, trajectory: EnvironmentSpec, place: str
    ) -> None:
        fill, tidy = f"exec dd if=/dev/zero of={place}/x bs=1M", f"exec rm {place}/x"
        report = await sandbox.run(a_command("sh", "-c", fill, environment=trajectory))
        if place == "/dev/shm" and sandbox.state.driver == "landlock":
            assert (report.outcome, b"Permission denied" in report.stderr.data) == ("user_error", True)
            return
        assert (report.outcome, report.reason) == ("limit_exceeded", "disk")
        assert (await sandbox.run(a_command("sh", "-c", tidy, environment=trajectory))).outcome == "ok"

    async def test_disk_limit_applies_to_the_sum_of_many_files(
        self, sandbox: Bench, trajectory: EnvironmentSpec
    ) -> None:
        many = "import time\nfor n in range(64):\n    open(str(n), 'wb').write(bytes(1 << 20))\ntime.sleep(5)"
        report = await sandbox.run(a_program(many, environment=trajectory))
        assert (report.outcome, report.reason) == ("limit_exceeded", "disk")
        tidy = a_command("sh", "-c", "rm -rf $HOME/*", environment=trajectory)
        assert (await sandbox.run(tidy)).outcome == "ok"

    async def test_deep_unreadable_tree_is_removed(self, sandbox: Bench) -> None:
        deep = """
import os
for _ in range(3000):
    os.mkdir("d")
    os.chdir("d")
fd = os.open(".", os.O_RDONLY)
open("f", "w")
os.fchmod(fd, 0)
"""
        assert (await sandbox.run(a_program(deep))).outcome == "ok"
        assert (await sandbox.run(a_command("true"))).outcome == "ok"

    async def test_disk_limit_bounds_the_number_of_inodes(self, sandbox: Bench, trajectory: EnvironmentSpec) -> None:
        flood = "import os\nfor number in range(1 << 20):\n    os.mkdir(str(number))"
        report = await sandbox.run(a_program(flood, environment=trajectory))
        assert (report.outcome, report.reason) == ("limit_exceeded", "disk")
        assert (await sandbox.run(a_command("true", environment=trajectory))).outcome == "ok"


class TestProcesses:
    async def test_processes_above_the_pids_limit_are_refused(self, sandbox: Bench) -> None:
        source = "import os, time\nfor _ in range(200):\n    if os.fork() == 0: time.sleep(60)"
        report = await sandbox.run(a_program(source, environment=an_environment(scope="ephemeral", pids=16)))
        if sandbox.enforcement["pids"] == "enforced":
            assert (report.outcome, report.reason) == ("limit_exceeded", "pids")
        elif mechanism_of(sandbox, "pids") == "a polled count":
            waiting = a_program(f"{source}\ntime.sleep(5)", environment=an_environment(scope="ephemeral", pids=16))
            late = await sandbox.run(waiting)
            found = (late.outcome, late.reason) == ("limit_exceeded", "pids")
            assert found or b"BlockingIOError" in late.stderr.data  # the dam for all of the user's processes was met
            return
        else:
            assert report.outcome == "user_error"
        assert b"BlockingIOError" in report.stderr.data

    async def test_leftover_processes_get_no_cpu(self, sandbox: Bench, trajectory: EnvironmentSpec) -> None:
        spin = "import os\nif os.fork() == 0:\n    os.setsid()\n    while True: pass"
        report = await sandbox.run(a_program(spin, environment=trajectory))
        assert (report.outcome, report.leftover_processes) == ("ok", 1)
        assert sandbox.launcher is not None
        pids = living_descendants(sandbox.launcher.pid)
        before = {pid: cpu_ns(pid) for pid in pids}
        await sandbox.run(a_command("sleep", "0.2"))
        assert sum(cpu_ns(pid) > before[pid] + 20_000_000 for pid in pids) == 0


class TestCpu:
    async def test_action_sees_and_uses_only_its_cores(self, sandbox: Bench) -> None:
        source = """
import os
try:
    os.sched_setaffinity(0, range(os.cpu_count()))
except OSError:
    pass
print(sorted(os.sched_getaffinity(0)), os.environ["OMP_NUM_THREADS"])
"""
        report = await sandbox.run(a_program(source, cores=(0,), cpu_milli=1000))
        assert report.stdout.data == b"[0] 1\n"

    async def test_fractional_core_quota_limits_cpu_time(self, sandbox: Bench) -> None:
        if sandbox.enforcement["cpu_quota"] != "enforced":
            pytest.skip("no writable cgroup")
        burn = "import time\nend = time.monotonic() + 1\nwhile time.monotonic() < end: pass"
        report = await sandbox.run(a_program(burn, cpu_milli=250))
        assert report.cpu_us <= 400_000


def runs_and_is_told(agent: int, program: str) -> bool:
    """Return True if a child of the agent is this program and the agent has reported it and sleeps."""
    words = [Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in living_descendants(agent)]
    waits = Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[0] == "S"
    return waits and any(word[0] == program.encode() for word in words)


def ends_of_a_bomb(sandbox: Bench) -> set[str]:
    """Return the allowed outcomes of a fork bomb. A polled process count may end it before its timeout."""
    looks = mechanism_of(sandbox, "pids") == "a polled count"
    return {"user_timeout", "limit_exceeded"} if looks else {"user_timeout"}


def mechanism_of(sandbox: Bench, name: str) -> str:
    return next(each.mechanism for each in sandbox.state.capabilities if each.name == name)


def cpu_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
