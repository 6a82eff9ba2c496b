"""Test environments that the launcher creates in advance."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.conditions import eventually, is_running
from support.sandbox import Bench, Launcher, a_bench, a_command, a_program, an_environment, cgroups_of, children_of

READY = 2


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with a_bench(tmp_path, "namespaces", ready=READY) as bench:
        await eventually(lambda: len(ready_in(launcher_of(bench))) == READY)
        yield bench


def launcher_of(bench: Bench) -> Launcher:
    assert bench.launcher is not None
    return bench.launcher


def ready_in(launcher: Launcher) -> list[str]:
    """Return the names of the ready environments that the launcher lists."""
    listing = launcher.directory / "launcher" / "ready"
    return listing.read_text().split() if listing.exists() else []


async def test_action_takes_a_ready_environment_and_the_launcher_replaces_it(bench: Bench) -> None:
    launcher = launcher_of(bench)
    before = set(children_of(launcher))
    environment = an_environment()
    report = await bench.run(a_command("true", environment=environment))
    assert report.outcome == "ok"
    await eventually(lambda: len(set(children_of(launcher)) - before) == 1)
    assert before <= set(children_of(launcher)), "the environment is one that was there before"
    await eventually(lambda: len(ready_in(launcher)) == READY)
    await bench.destroy(environment.id)


async def test_ready_environment_gets_the_disk_size_of_its_action(bench: Bench) -> None:
    small, large = (an_environment(disk_mib=size, memory_mib=64) for size in (4, 24))
    program = "import os; s = os.statvfs('.'); print(s.f_blocks * s.f_frsize >> 20, os.getcwd())"
    for environment, shown in ((small, b"4 /workspace\n"), (large, b"24 /workspace\n")):
        report = await bench.run(a_program(program, environment=environment))
        assert report.stdout.data == shown
    await bench.destroy(small.id, large.id)


async def test_actions_beyond_the_ready_environments_create_new_ones(bench: Bench) -> None:
    reports = [await bench.begin(a_command("sleep", "0.2")) for _ in range(READY * 3)]
    assert {(await report).outcome for report in reports} == {"ok"}
    await eventually(lambda: len(ready_in(launcher_of(bench))) == READY)


async def test_ready_environment_that_dies_early_fails_no_action(bench: Bench) -> None:
    launcher = launcher_of(bench)
    _, *ready = children_of(launcher)
    for pid in ready:
        os.kill(pid, signal.SIGKILL)
    assert {(await bench.run(a_command("true"))).outcome for _ in range(3)} == {"ok"}


async def test_launcher_exit_removes_all_ready_environments(tmp_path: Path) -> None:
    async with a_bench(tmp_path, "namespaces", ready=READY) as bench:
        launcher = launcher_of(bench)
        await eventually(lambda: len(ready_in(launcher)) == READY)
        children = children_of(launcher)
    await eventually(lambda: not any(map(is_running, children)))
    assert cgroups_of(launcher) == []
    assert ready_in(launcher) == []
