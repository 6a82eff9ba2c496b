"""What only the agent in C does: it keeps an interpreter for source, and is kept itself for the next launcher."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from arl_cpu.contract.executor import EnvironmentSpec
from arl_cpu.launcher.agent import native
from support.sandbox import NATIVE, Bench, a_bench, a_command, a_program, agent_of, an_environment

pytestmark = NATIVE

PARENT = "import os; print(os.getppid())"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with a_bench(tmp_path, "namespaces+native") as bench:
        yield bench


@pytest.fixture
def kept() -> EnvironmentSpec:
    return an_environment()


async def told(bench: Bench, source: str, environment: EnvironmentSpec, **changes: object) -> str:
    report = await bench.run(a_program(source, environment=environment, **changes))
    assert report.outcome == "ok", report
    return report.stdout.data.decode().strip()


async def test_one_interpreter_serves_every_source_of_an_environment(bench: Bench, kept: EnvironmentSpec) -> None:
    first = await told(bench, PARENT, kept)
    assert [await told(bench, PARENT, kept) for _ in range(3)] == [first] * 3


async def test_another_search_path_is_another_interpreter(bench: Bench, kept: EnvironmentSpec) -> None:
    first = await told(bench, PARENT, kept)
    assert await told(bench, "import sys; print('/x' in sys.path)", kept, env={"PYTHONPATH": "/x"}) == "True"
    assert await told(bench, PARENT, kept) != first


async def test_variables_of_one_action_are_not_seen_by_the_next(bench: Bench, kept: EnvironmentSpec) -> None:
    secret = {"KEY": "of-the-first"}
    await told(bench, "import os; assert os.environ['KEY']", kept, env=secret)
    seen = await bench.run(a_command("sh", "-c", "cat /proc/[0-9]*/environ 2>&1; env", environment=kept))
    assert b"PATH=" in seen.stdout.data
    assert b"of-the-first" not in seen.stdout.data


async def test_who_ends_the_interpreter_ends_only_that(bench: Bench, kept: EnvironmentSpec) -> None:
    first = await told(bench, PARENT, kept)
    killer = "import os, sys; os.kill(os.getppid(), 9); print('on'); sys.exit(3)"
    report = await bench.run(a_program(killer, environment=kept))
    assert (report.outcome, report.exit_code, report.stdout.data) == ("user_error", 3, b"on\n")
    assert await told(bench, PARENT, kept) != first


async def test_a_stopped_interpreter_costs_its_action_the_timeout_and_nothing_else(
    bench: Bench, kept: EnvironmentSpec
) -> None:
    stop = "import os, signal; os.kill(os.getppid(), signal.SIGSTOP)"
    report = await bench.run(a_program(stop, environment=kept, timeout_s=1.0))
    assert report.run_us > 900_000  # nobody tells of its end before
    assert not report.environment_lost
    assert await told(bench, "print(2)", kept) == "2"


async def test_it_is_not_counted_as_left_behind(bench: Bench, kept: EnvironmentSpec) -> None:
    report = await bench.run(a_program("print(1)", environment=kept))
    assert report.leftover_processes == 0
    report = await bench.run(a_command("sh", "-c", "sleep 1000 &", environment=kept))
    assert report.leftover_processes == 1


async def test_an_environment_without_room_for_an_interpreter_is_over_its_memory(bench: Bench) -> None:
    small = an_environment(memory_mib=8, disk_mib=1)
    assert (await bench.run(a_command("true", environment=small))).outcome == "ok"
    report = await bench.run(a_program("x = bytearray(30 << 20)", environment=small))
    assert (report.outcome, report.reason) == ("limit_exceeded", "memory")
    assert (await bench.run(a_command("true", environment=small))).outcome == "ok"


async def test_a_resting_environment_holds_a_tenth_of_what_python_needs(bench: Bench, kept: EnvironmentSpec) -> None:
    await bench.run(a_command("true", environment=kept))
    assert bench.launcher is not None
    memory = Path(f"/proc/{agent_of(bench.launcher)}/smaps_rollup").read_text()
    anonymous = next(int(line.split()[1]) for line in memory.splitlines() if line.startswith("Private_Dirty:"))
    assert anonymous < 300


def test_the_program_is_made_once_and_only_where_nobody_else_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "_home", lambda: tmp_path)
    os.close(native.open_native_agent())
    (program,) = (tmp_path / ".cache/tangram").iterdir()
    made = program.stat().st_mtime_ns
    os.close(native.open_native_agent())
    assert program.stat().st_mtime_ns == made
    program.parent.chmod(0o777)
    with pytest.raises(native.NativeAgentUnavailable, match="writable by other users"):
        native.open_native_agent()


def test_without_a_compiler_the_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_home", lambda: tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(native.NativeAgentUnavailable, match="no C compiler"):
        native.open_native_agent()


def test_a_program_that_was_cut_short_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_home", lambda: tmp_path)
    os.close(native.open_native_agent())
    (program,) = (tmp_path / ".cache/tangram").iterdir()
    program.write_bytes(program.read_bytes()[:1000])
    os.close(native.open_native_agent())
    assert program.stat().st_size > 100_000


async def test_files_of_the_working_directory_are_no_modules_of_the_interpreter(
    bench: Bench, kept: EnvironmentSpec
) -> None:
    trap = {"token.py": b"raise SystemExit(9)", "io.py": b"raise SystemExit(9)"}
    assert (await bench.run(a_command("true", files=trap, environment=kept))).outcome == "ok"
    assert await told(bench, "print('hi')", kept) == "hi"


async def test_why_the_interpreter_does_not_start_is_told(bench: Bench, kept: EnvironmentSpec) -> None:
    report = await bench.run(a_program("print(1)", environment=kept, env={"PYTHONHOME": "/nonexistent"}))
    assert report.outcome == "user_error"
    assert b"/nonexistent" in report.stderr.data or b"encodings" in report.stderr.data
    assert await told(bench, "print(2)", kept) == "2"


async def test_packages_installed_meanwhile_are_found(bench: Bench, kept: EnvironmentSpec) -> None:
    place = await told(bench, "import site; print(site.getusersitepackages())", kept)
    install = f"mkdir -p {place} && echo 'x = 7' > {place}/fresh.py"
    assert (await bench.run(a_command("sh", "-c", install, environment=kept))).outcome == "ok"
    assert await told(bench, "import fresh; print(fresh.x)", kept) == "7"


async def test_a_message_that_is_no_utf_8_is_no_harm(bench: Bench, kept: EnvironmentSpec) -> None:
    report = await bench.run(a_command("true", cwd="\udc80", environment=kept))
    assert report.outcome == "user_error"
    assert (await bench.run(a_command("true", environment=kept))).outcome == "ok"
