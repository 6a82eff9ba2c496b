"""Test the contract between manager and executor, with every executor."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from arl_core.domain.model import Fence
from arl_cpu.contract.simulated_executor import SimulatedExecutor
from support.sandbox import Bench, a_bench, a_command, a_program, an_environment, sandboxes, shared

REAL = ("unsafe-local", *sandboxes())


@pytest.fixture(scope="module", params=("simulated", *REAL))
async def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    async for each in _bench(request.param, tmp_path_factory.mktemp("executor")):
        yield each


@pytest.fixture(scope="module", params=REAL)
async def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    async for each in _bench(request.param, tmp_path_factory.mktemp("executor")):
        yield each


async def _bench(driver: str, directory: Path) -> AsyncIterator[Bench]:
    if driver == "simulated":
        executor = SimulatedExecutor()
        bench = Bench(executor, await executor.connect())
        yield bench
        await bench.close()
    else:
        async with a_bench(directory, driver) as bench:
            yield bench


class TestEveryExecutor:
    async def test_successful_attempt_is_ok_and_reports_enforced_limits(self, bench: Bench) -> None:
        report = await bench.run(a_command("true"))
        assert (report.outcome, report.exit_code, report.environment_lost) == ("ok", 0, False)
        # The verifier's packages are a property of the node and limit no action.
        limits = {name: level for name, level in bench.enforcement.items() if name != "math_verifier"}
        assert report.enforcement == limits

    async def test_attempt_past_its_timeout_is_a_user_timeout(self, bench: Bench) -> None:
        report = await bench.run(a_command("sleep", "30", timeout_s=0.2))
        assert report.outcome == "user_timeout"
        assert 200_000 <= report.run_us < 5_000_000

    @pytest.mark.parametrize("fields", [{}, shared()], ids=["exclusive", "shared"])
    @pytest.mark.parametrize(("wall_s", "limit"), [(None, "timeout_s"), (0.1, "wall_timeout_s")])
    async def test_reason_of_a_timeout_names_the_limit(
        self, bench: Bench, fields: dict[str, Any], wall_s: float | None, limit: str
    ) -> None:
        report = await bench.run(a_command("sleep", "30", timeout_s=0.2, wall_timeout_s=wall_s, **fields))
        assert (report.outcome, report.reason) == ("user_timeout", limit)
        assert report.counted_us is not None
        assert 100_000 <= report.run_us < 1_200_000

    async def test_shared_cores_can_be_set_with_and_without_shared_attempts(self, bench: Bench) -> None:
        await bench.executor.set_shared_cores((0,))
        assert (await bench.run(a_command("true", **shared()))).outcome == "ok"
        await bench.executor.set_shared_cores(tuple(os.sched_getaffinity(0)))

    async def test_killed_attempt_is_cancelled(self, bench: Bench) -> None:
        spec = a_command("sleep", "30")
        report = await bench.begin(spec)
        await bench.executor.kill([spec.fence])
        assert (await report).outcome == "cancelled"

    async def test_second_start_of_a_fence_is_ignored(self, bench: Bench) -> None:
        spec = a_command("sleep", "0.1")
        report = await bench.begin(spec)
        await bench.executor.start([spec])
        assert (await report).outcome == "ok"
        await bench.executor.start([spec])
        assert (await bench.run(a_command("true"))).outcome == "ok"  # a second report would have failed the listener

    async def test_kill_of_an_unknown_fence_is_ignored(self, bench: Bench) -> None:
        await bench.executor.kill([Fence(uuid4(), 1)])
        assert (await bench.run(a_command("true"))).outcome == "ok"

    async def test_every_repeated_resize_of_a_running_attempt_is_confirmed(self, bench: Bench) -> None:
        spec = a_command("sleep", "30", cores=(0,))
        report = await bench.begin(spec)
        assert [await bench.resize(spec, 500, 0, seq=seq) for seq in (1, 2, 2, 1)] == [True] * 4
        await bench.executor.kill([spec.fence])
        assert (await report).outcome == "cancelled"

    async def test_resize_of_an_ended_or_unknown_attempt_is_not_confirmed(self, bench: Bench) -> None:
        ended = a_command("true")
        await bench.run(ended)
        assert not await bench.resize(ended, 500, 0)
        assert not await bench.resize(a_command("true"), 500, 0)

    async def test_busy_environment_refuses_a_second_attempt(self, bench: Bench) -> None:
        environment = an_environment()
        first = a_command("sleep", "30", environment=environment)
        running = await bench.begin(first)
        second = await bench.run(a_command("true", environment=environment))
        assert (second.outcome, second.reason) == ("infra_error", "environment_busy")
        await bench.executor.kill([first.fence])
        assert (await running).outcome == "cancelled"
        await bench.destroy(environment.id)

    async def test_destroying_an_environment_cancels_its_running_attempt(self, bench: Bench) -> None:
        environment = an_environment()
        running = await bench.begin(a_command("sleep", "30", environment=environment))
        await bench.destroy(environment.id)
        assert (await running).outcome == "cancelled"

    async def test_attempts_in_different_environments_run_concurrently(self, bench: Bench) -> None:
        reports = [await bench.begin(a_command("sleep", "0.3")) for _ in range(6)]
        ended = await asyncio.wait_for(asyncio.gather(*reports), 1.6)
        assert {report.outcome for report in ended} == {"ok"}


class TestRealExecutors:
    async def test_report_contains_exit_code_stdout_and_stderr(self, real: Bench) -> None:
        report = await real.run(a_command("sh", "-c", "cat; echo no >&2; exit 3", stdin=b"yes\xff"))
        assert (report.outcome, report.exit_code, report.signal) == ("user_error", 3, None)
        assert (report.stdout.data, report.stderr.data) == (b"yes\xff", b"no\n")
        assert not report.stdout.is_truncated

    async def test_standard_streams_can_be_opened_by_path(self, real: Bench) -> None:
        report = await real.run(
            a_command("sh", "-c", "cat /dev/stdin > /dev/stdout; echo e > /dev/stderr", stdin=b"in")
        )
        assert (report.stdout.data, report.stderr.data) == (b"in", b"e\n")

    async def test_program_that_signals_itself_is_a_user_error_with_signal(self, real: Bench) -> None:
        report = await real.run(a_command("sh", "-c", "kill -SEGV $$"))
        assert (report.outcome, report.exit_code, report.signal) == ("user_error", None, 11)

    async def test_unknown_command_is_a_user_error_with_exit_code_127(self, real: Bench) -> None:
        report = await real.run(a_command("no-such-command"))
        assert (report.outcome, report.exit_code) == ("user_error", 127)
        assert b"no-such-command" in report.stderr.data

    async def test_source_runs_as_main_with_stdin_arguments_and_variables(self, real: Bench) -> None:
        source = "import os, sys\nprint(__name__, sys.argv, sys.stdin.read(), os.environ['WHO'])"
        report = await real.run(a_program(source, stdin=b"in", env={"WHO": "me"}))
        assert (report.outcome, report.stdout.data) == ("ok", b"__main__ ['main.py'] in me\n")

    async def test_uncaught_exception_shows_the_source_line_and_exits_with_1(self, real: Bench) -> None:
        report = await real.run(a_program("def f():\n    return 1 / 0\nf()\n"))
        assert (report.outcome, report.exit_code) == ("user_error", 1)
        assert b'main.py", line 2, in f\n    return 1 / 0' in report.stderr.data
        assert b"arl_cpu" not in report.stderr.data

    @pytest.mark.parametrize(("statement", "code"), [("0", 0), ("7", 7), ("'bad'", 1), ("", 0)])
    async def test_sys_exit_sets_the_exit_code(self, real: Bench, statement: str, code: int) -> None:
        assert (await real.run(a_program(f"import sys; sys.exit({statement})"))).exit_code == code

    async def test_source_that_does_not_compile_is_a_user_error(self, real: Bench) -> None:
        report = await real.run(a_program("def"))
        assert report.exit_code == 1
        assert b"SyntaxError" in report.stderr.data

    async def test_source_ends_after_its_threads_and_exit_handlers(self, real: Bench) -> None:
        source = (
            "import atexit, threading\natexit.register(print, 'exit')\n"
            "threading.Timer(0.05, print, ('thread',)).start()\nprint('main')"
        )
        assert (await real.run(a_program(source))).stdout.data == b"main\nthread\nexit\n"

    @pytest.mark.parametrize(
        ("source", "written"),
        [
            ("kept = open('out', 'w'); kept.write('unclosed')", b"unclosed"),
            ("import sys; sys.stdout = open('out', 'w'); print('redirected', end='')", b"redirected"),
            ("import sys; sys.stdout.close(); open('out', 'w').write('closed')", b"closed"),
            ("import helper; helper.file.write('by a module')", b"by a module"),
        ],
    )
    async def test_source_flushes_open_files_before_it_exits(self, real: Bench, source: str, written: bytes) -> None:
        helper = {"helper.py": b"file = open('out', 'w')"}
        report = await real.run(a_program(source, fetch=("out",), files=helper))
        assert (report.exit_code, report.files, report.stderr.data) == (0, {"out": written}, b"")

    async def test_source_can_inspect_its_own_lines(self, real: Bench) -> None:
        source = "import inspect\ndef f():\n    return 1\nprint(inspect.getsource(f), end='')"
        assert (await real.run(a_program(source))).stdout.data == b"def f():\n    return 1\n"

    async def test_daemon_threads_of_source_end_without_output(self, real: Bench) -> None:
        busy = "import threading\ndef f(x): return x + 1\ndef g():\n x = 0\n while True: x = f(x)\n"
        start = "for _ in range(3): threading.Thread(target=g, daemon=True).start()\nprint('done')"
        report = await real.run(a_program(busy + start))
        assert (report.exit_code, report.stdout.data, report.stderr.data) == (0, b"done\n", b"")

    async def test_source_uses_the_time_zone_variable_of_its_action(self, real: Bench) -> None:
        source = "import time; print(time.tzname[0], time.strftime('%H', time.localtime(0)))"
        assert (await real.run(a_program(source, env={"TZ": "JST-9"}))).stdout.data == b"JST 09\n"

    async def test_source_that_raises_keyboard_interrupt_ends_with_signal_2(self, real: Bench) -> None:
        report = await real.run(a_program("raise KeyboardInterrupt"))
        assert (report.exit_code, report.signal) == (None, 2)
        assert b"KeyboardInterrupt" in report.stderr.data

    async def test_input_files_are_written_and_requested_files_fetched(self, real: Bench) -> None:
        blob = bytes(range(256)) * 4096
        files = {"data/in.bin": blob}
        command = a_command("cp", "data/in.bin", "out.bin", files=files, fetch=("out.bin", "none"))
        report = await real.run(command)
        assert report.files == {"out.bin": blob}
        assert report.missing_files == ("none",)

    async def test_source_larger_than_a_packet_runs(self, real: Bench) -> None:
        source = f"text = {'x' * 2_000_000!r}\nprint(len(text))"
        assert (await real.run(a_program(source))).stdout.data == b"2000000\n"

    @pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "a/../../b", "."])
    async def test_path_outside_the_workspace_is_a_named_user_error(self, real: Bench, path: str) -> None:
        for command in (a_command("true", files={path: b""}), a_command("true", fetch=(path,))):
            report = await real.run(command)
            assert report.outcome == "user_error"
            assert path.encode() in report.stderr.data

    async def test_fetched_file_above_the_limit_is_missing_with_a_message(self, real: Bench) -> None:
        report = await real.run(a_command("truncate", "-s", "9M", "big", fetch=("big",)))
        assert (report.files, report.missing_files) == ({}, ("big",))
        assert "8388608" in (report.message or "")

    async def test_trajectory_environment_keeps_files_and_an_ephemeral_one_does_not(self, real: Bench) -> None:
        environment = an_environment()
        await real.run(a_command("touch", "kept", environment=environment))
        assert (await real.run(a_command("test", "-e", "kept", environment=environment))).outcome == "ok"
        assert (await real.run(a_command("test", "-e", "kept"))).outcome == "user_error"
        await real.destroy(environment.id)

    async def test_output_past_the_cap_is_counted_and_marked_as_truncated(self, real: Bench) -> None:
        report = await real.run(a_command("head", "-c", "10000000", "/dev/zero"))
        assert (report.outcome, len(report.stdout.data)) == ("ok", 1 << 20)
        assert (report.stdout.total_bytes, report.stdout.is_truncated) == (10_000_000, True)

    async def test_output_above_the_kill_limit_is_limit_exceeded(self, real: Bench) -> None:
        report = await real.run(a_command("cat", "/dev/zero", output_kill_bytes=4 << 20))
        assert (report.outcome, report.reason) == ("limit_exceeded", "output")

    async def test_output_before_a_timeout_is_reported(self, real: Bench) -> None:
        report = await real.run(a_command("sh", "-c", "echo early; sleep 30", timeout_s=0.3))
        assert (report.outcome, report.stdout.data) == ("user_timeout", b"early\n")

    async def test_leftover_processes_of_a_trajectory_stay_alive_and_are_counted(self, real: Bench) -> None:
        environment = an_environment()
        report = await real.run(a_command("sh", "-c", "sleep 60 & echo $! >pid", environment=environment))
        assert (report.outcome, report.leftover_processes) == ("ok", 1)
        alive = await real.run(a_command("sh", "-c", "kill -0 $(cat pid)", environment=environment))
        assert (alive.outcome, alive.leftover_processes) == ("ok", 0)
        await real.destroy(environment.id)

    async def test_timeout_kills_only_processes_of_its_own_attempt(self, real: Bench) -> None:
        environment = an_environment()
        await real.run(a_command("sh", "-c", "sleep 60 & echo $! >old", environment=environment))
        hanging = "setsid sleep 60 & echo $! >new; sleep 60"
        late = await real.run(a_command("sh", "-c", hanging, environment=environment, timeout_s=0.3))
        assert (late.outcome, late.environment_lost) == ("user_timeout", False)
        alive = "kill -0 $(cat old) && ! kill -0 $(cat new)"
        assert (await real.run(a_command("sh", "-c", alive, environment=environment))).outcome == "ok"
        await real.destroy(environment.id)

    async def test_timeout_does_not_include_environment_creation(self, real: Bench) -> None:
        """The launcher creates sixteen environments in sequence; timeouts do not include that time."""
        reports = [await real.begin(a_command("sleep", "0.4", timeout_s=1.0)) for _ in range(16)]
        assert {(await report).outcome for report in reports} == {"ok"}

    async def test_report_contains_cpu_time_and_peak_memory(self, real: Bench) -> None:
        source = "import time\nheld = b'x' * (40 << 20)\nwhile time.process_time() < 0.2: pass"
        report = await real.run(a_program(source))
        assert 150_000 <= report.cpu_us < 2_000_000
        assert report.peak_memory_kib >= 40 << 10

    async def test_unknown_template_is_an_infrastructure_error(self, real: Bench) -> None:
        report = await real.run(a_command("true", environment=an_environment(template="moon")))
        assert (report.outcome, report.reason) == ("infra_error", "setup_failed")
        assert report.message is not None
        can = real.enforcement["templates"] != "absent"
        assert (
            "'moon' is not available on this node. Available: host" if can else "supports only the template `host`"
        ) in report.message
