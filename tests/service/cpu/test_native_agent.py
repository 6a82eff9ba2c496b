"""Test the native C agent: its memory, its cached program and its actions."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from arl_cpu.contract.executor import EnvironmentSpec
from arl_cpu.launcher.agent import native
from support.sandbox import NATIVE, Bench, a_bench, a_command, a_program, agent_of, an_environment

pytestmark = NATIVE


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


async def test_variables_of_one_action_are_hidden_from_the_next(bench: Bench, kept: EnvironmentSpec) -> None:
    secret = {"KEY": "of-the-first"}
    await told(bench, "import os; assert os.environ['KEY']", kept, env=secret)
    seen = await bench.run(a_command("sh", "-c", "cat /proc/[0-9]*/environ 2>&1; env", environment=kept))
    assert b"PATH=" in seen.stdout.data
    assert b"of-the-first" not in seen.stdout.data


async def test_only_processes_of_the_action_are_counted_as_leftover(bench: Bench, kept: EnvironmentSpec) -> None:
    report = await bench.run(a_program("print(1)", environment=kept))
    assert report.leftover_processes == 0
    report = await bench.run(a_command("sh", "-c", "sleep 1000 &", environment=kept))
    assert report.leftover_processes == 1


async def test_source_in_a_too_small_environment_exceeds_memory(bench: Bench) -> None:
    small = an_environment(memory_mib=8, disk_mib=1)
    assert (await bench.run(a_command("true", environment=small))).outcome == "ok"
    report = await bench.run(a_program("x = bytearray(30 << 20)", environment=small))
    assert (report.outcome, report.reason) == ("limit_exceeded", "memory")
    assert (await bench.run(a_command("true", environment=small))).outcome == "ok"


async def test_idle_environment_uses_less_than_300_kib_private_memory(bench: Bench, kept: EnvironmentSpec) -> None:
    await bench.run(a_command("true", environment=kept))
    assert bench.launcher is not None
    memory = Path(f"/proc/{agent_of(bench.launcher)}/smaps_rollup").read_text()
    anonymous = next(int(line.split()[1]) for line in memory.splitlines() if line.startswith("Private_Dirty:"))
    assert anonymous < 300


def test_agent_is_compiled_once_and_refuses_a_world_writable_directory(
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


def test_missing_compiler_is_reported_as_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_home", lambda: tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(native.NativeAgentUnavailable, match="no C compiler"):
        native.open_native_agent()


def test_truncated_agent_program_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_home", lambda: tmp_path)
    os.close(native.open_native_agent())
    (program,) = (tmp_path / ".cache/tangram").iterdir()
    program.write_bytes(program.read_bytes()[:1000])
    os.close(native.open_native_agent())
    assert program.stat().st_size > 100_000


async def test_interpreter_start_failure_is_reported_in_stderr(bench: Bench, kept: EnvironmentSpec) -> None:
    report = await bench.run(a_program("print(1)", environment=kept, env={"PYTHONHOME": "/nonexistent"}))
    assert report.outcome == "user_error"
    assert b"/nonexistent" in report.stderr.data or b"encodings" in report.stderr.data
    assert await told(bench, "print(2)", kept) == "2"


async def test_packages_installed_by_an_earlier_action_are_importable(bench: Bench, kept: EnvironmentSpec) -> None:
    place = await told(bench, "import site; print(site.getusersitepackages())", kept)
    install = f"mkdir -p {place} && echo 'x = 7' > {place}/fresh.py"
    assert (await bench.run(a_command("sh", "-c", install, environment=kept))).outcome == "ok"
    assert await told(bench, "import fresh; print(fresh.x)", kept) == "7"


async def test_request_with_invalid_utf_8_is_a_user_error(bench: Bench, kept: EnvironmentSpec) -> None:
    report = await bench.run(a_command("true", cwd="\udc80", environment=kept))
    assert report.outcome == "user_error"
    assert (await bench.run(a_command("true", environment=kept))).outcome == "ok"
