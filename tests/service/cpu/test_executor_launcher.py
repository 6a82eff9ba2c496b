"""Test the launcher's life cycle: reconnecting managers, loss of processes, stop and kill."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

import arl_core
import arl_cpu
from arl_cpu.contract.executor import ExecutionReport
from arl_cpu.contract.launcher_client import LauncherClient
from arl_cpu.launcher.isolation.drivers import DRIVERS as ALL_DRIVERS
from support.conditions import eventually, is_running
from support.sandbox import (
    Bench,
    Launcher,
    a_bench,
    a_command,
    a_program,
    agent_of,
    an_environment,
    cgroups_of,
    living_descendants,
    sandboxes,
    zygote_of,
)

DRIVERS = ("unsafe-local", *sandboxes(slow=("landlock",)))


@pytest.fixture(params=DRIVERS)
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    async with a_bench(tmp_path, request.param) as bench:
        yield bench


def launcher_of(bench: Bench) -> Launcher:
    assert bench.launcher is not None
    return bench.launcher


class TestReconnect:
    async def test_report_is_kept_until_a_manager_acknowledges_it(self, bench: Bench) -> None:
        spec = a_command("echo", "kept")
        lost_manager = LauncherClient(launcher_of(bench).socket)
        await lost_manager.connect()
        await lost_manager.start([spec])
        assert isinstance(await anext(lost_manager.events()), ExecutionReport)
        await lost_manager.close()

        manager = LauncherClient(launcher_of(bench).socket)
        (report,) = (await manager.connect()).reports
        assert (report.fence, report.stdout.data) == (spec.fence, b"kept\n")
        await manager.acknowledge([spec.fence])
        assert (await manager.connect()).reports == ()
        await manager.close()

    async def test_running_attempt_and_its_output_survive_a_manager_restart(self, bench: Bench) -> None:
        environment = an_environment()
        spec = a_command("sh", "-c", "echo before; sleep 0.3; echo after", environment=environment)
        lost_manager = LauncherClient(launcher_of(bench).socket)
        first = await lost_manager.connect()
        await lost_manager.start([spec])
        await lost_manager.close()

        manager = LauncherClient(launcher_of(bench).socket)
        state = await manager.connect()
        assert state.node_epoch == first.node_epoch
        assert state.environments == (environment.id,)
        assert [(each.fence, each.environment) for each in state.running] == [(spec.fence, environment.id)]
        report = await anext(manager.events())
        assert isinstance(report, ExecutionReport)
        assert (report.outcome, report.stdout.data) == ("ok", b"before\nafter\n")
        await manager.close()

    async def test_new_manager_connection_closes_the_old_one(self, bench: Bench) -> None:
        old, new = LauncherClient(launcher_of(bench).socket), LauncherClient(launcher_of(bench).socket)
        await old.connect()
        await new.connect()
        with pytest.raises(ConnectionError):
            await anext(old.events())
        await old.close()
        await new.close()

    async def test_malformed_message_closes_only_its_connection(self, bench: Bench) -> None:
        reader, writer = await asyncio.open_unix_connection(launcher_of(bench).socket)
        writer.write(b"\0\0\0\4[1,]")
        assert await reader.read() == b""
        writer.close()
        manager = LauncherClient(launcher_of(bench).socket)
        assert (await manager.connect()).running == ()
        await manager.close()


@pytest.mark.slow
class TestLoad:
    async def test_four_hundred_concurrent_starts_all_report(self, bench: Bench) -> None:
        specs = [a_command("true") for _ in range(400)]
        reports = [bench.report_of(spec.fence) for spec in specs]
        await bench.executor.start(specs)
        assert {report.outcome for report in await asyncio.gather(*reports)} == {"ok"}


async def lose_the_zygote(directory: Path) -> None:
    """Kill the zygote and wait until the launcher has exited; closing the bench raises with its error output."""
    async with a_bench(directory, "unsafe-local") as bench:
        launcher = launcher_of(bench)
        os.kill(zygote_of(launcher), signal.SIGKILL)
        await eventually(lambda: not is_running(launcher.pid))


class TestLoss:
    async def test_launcher_exits_if_its_zygote_is_lost(self, tmp_path: Path) -> None:
        with pytest.raises(RuntimeError, match="creates environments has ended"):
            await lose_the_zygote(tmp_path)

    async def test_missing_used_environment_is_lost_and_not_created_again(self, bench: Bench) -> None:
        environment = replace(an_environment(), may_make=False)
        report = await bench.run(a_command("true", environment=environment))
        assert (report.outcome, report.reason, report.environment_lost) == ("infra_error", "environment_lost", True)

    async def test_loss_of_an_idle_environment_is_reported(self, bench: Bench) -> None:
        environment = an_environment()
        await bench.run(a_command("true", environment=environment))
        os.kill(agent_of(launcher_of(bench)), signal.SIGKILL)
        if bench.enforcement["freeze"] == "enforced":
            # What cgroup v1 froze dies when it is thawed.
            report = await bench.run(a_command("true", environment=environment))
            assert (report.outcome, report.reason, report.environment_lost) == ("infra_error", "environment_lost", True)
        else:
            assert (await bench.lost.get()).id == environment.id

    async def test_attempt_in_a_lost_environment_is_an_infrastructure_error(self, bench: Bench) -> None:
        environment = an_environment()
        await bench.run(a_command("true", environment=environment))
        agent = agent_of(launcher_of(bench))
        running = await bench.begin(a_command("sleep", "30", environment=environment))
        os.kill(agent, signal.SIGKILL)
        report = await running
        assert (report.outcome, report.reason, report.environment_lost) == ("infra_error", "environment_lost", True)


class TestShutdown:
    @pytest.mark.parametrize("driver", DRIVERS)
    async def test_stopped_launcher_leaves_no_processes_files_or_cgroups(self, driver: str, tmp_path: Path) -> None:
        launcher, started = await a_busy_launcher(tmp_path, driver)
        code, errors = launcher.stop()
        assert (code, errors) == (0, "")
        assert not [pid for pid in started if is_running(pid)]
        assert [path.name for path in (tmp_path / "launcher").iterdir()] == ["lock"]
        assert not launcher.socket.exists()
        assert cgroups_of(launcher) == []

    @pytest.mark.parametrize("driver", DRIVERS)
    async def test_next_launcher_cleans_up_after_a_killed_one(self, driver: str, tmp_path: Path) -> None:
        launcher, started = await a_busy_launcher(tmp_path, driver)
        launcher.stop(signal.SIGKILL)
        async with a_bench(tmp_path, driver) as again:
            assert again.state.environments == ()
            await eventually(lambda: not any(is_running(pid) for pid in started))
            assert cgroups_of(launcher) == []

    @pytest.mark.parametrize("driver", DRIVERS)
    async def test_launcher_killed_during_environment_creation_does_not_block_the_next(
        self, driver: str, tmp_path: Path
    ) -> None:
        for _ in range(4):
            launcher = Launcher(tmp_path, driver)
            launcher.wait_until_ready()
            client = LauncherClient(launcher.socket)
            await client.connect()
            await client.start([a_command("true", environment=an_environment()) for _ in range(6)])
            await eventually(lambda of=launcher: len(living_descendants(of.pid)) > 2)  # type: ignore[misc]
            launcher.stop(signal.SIGKILL)
            await client.close()
        async with a_bench(tmp_path, driver) as bench:
            assert (await bench.run(a_command("true"))).outcome == "ok"

    @pytest.mark.parametrize("driver", DRIVERS)
    async def test_programs_do_not_inherit_signals_that_the_launcher_ignores(self, driver: str, tmp_path: Path) -> None:
        """A launcher that `nohup` started ignores SIGHUP."""
        ignoring = ("sh", "-c", 'trap "" HUP INT QUIT USR1; exec "$@"', "sh")
        program = "import os, signal; os.kill(os.getpid(), signal.SIGHUP); print('survived')"
        async with a_bench(tmp_path, driver, prefix=ignoring) as bench:
            for attempt in (a_command("sh", "-c", "kill -HUP $$; echo survived"), a_program(program)):
                report = await bench.run(attempt)
                assert (report.outcome, report.signal, report.stdout.data) == ("user_error", signal.SIGHUP, b"")

    async def test_second_launcher_in_the_same_directory_is_refused(self, tmp_path: Path) -> None:
        async with a_bench(tmp_path, "unsafe-local"):
            second = Launcher(tmp_path, "unsafe-local")
            with pytest.raises(RuntimeError, match="another launcher already uses"):
                second.wait_until_ready()


class TestSettings:
    @pytest.mark.parametrize(
        ("variables", "sentence"),
        [
            ({"TANGRAM_DRIVER": "magic"}, "must be one of"),
            ({"TANGRAM_LAUNCHER_DIR": ""}, "TANGRAM_LAUNCHER_DIR must be set"),
            ({"TANGRAM_NODE_NAME": "a/b"}, "must be a name without '/'"),
        ],
    )
    def test_invalid_setting_is_refused_with_an_explanation(
        self, tmp_path: Path, variables: dict[str, str], sentence: str
    ) -> None:
        launcher = Launcher(tmp_path, "namespaces", **variables)
        with pytest.raises(RuntimeError, match=sentence):
            launcher.wait_until_ready()


async def a_busy_launcher(directory: Path, driver: str) -> tuple[Launcher, set[int]]:
    """Start a launcher with idle, running and leftover processes; return it and all its descendants."""
    launcher = Launcher(directory, driver)
    launcher.wait_until_ready()
    client = LauncherClient(launcher.socket)
    bench = Bench(client, await client.connect(), launcher)
    await bench.run(a_command("sh", "-c", "setsid sleep 600 & sleep 600 &", environment=an_environment()))
    ready = a_command("sh", "-c", "setsid sleep 600 & exec sleep 600", environment=an_environment())
    report = await bench.begin(ready)
    await bench.run(a_command("true", environment=an_environment(id=UUID(int=1))))
    started = living_descendants(launcher.pid)
    report.cancel()
    await bench.close()
    return launcher, started


FORBID = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
WITHOUT_NAMESPACES = ("unshare", "-Ur", "sh", "-c", FORBID, "sh")
"""The limit applies to the outer namespace only; it changes nothing on the host."""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare(1)")
class TestWithoutUserNamespaces:
    def test_chosen_namespaces_driver_is_refused_with_advice(self, tmp_path: Path) -> None:
        launcher = Launcher(tmp_path, "namespaces", prefix=WITHOUT_NAMESPACES)
        with pytest.raises(RuntimeError, match=r"does not work on this host: .*TANGRAM_DRIVER=unsafe-local"):
            launcher.wait_until_ready()
        assert launcher.stop()[0] == 3

    @pytest.mark.skipif(os.geteuid() == 0, reason="root of a namespace with one uid has none to give away")
    @pytest.mark.skipif(bool(ALL_DRIVERS["landlock"].problem()), reason=str(ALL_DRIVERS["landlock"].problem()))
    async def test_default_driver_falls_back_to_landlock_and_reports_it(self, tmp_path: Path) -> None:
        launcher = Launcher(tmp_path, "auto", prefix=WITHOUT_NAMESPACES)
        launcher.wait_until_ready()
        client = LauncherClient(launcher.socket)
        bench = Bench(client, await client.connect(), launcher)
        report = await bench.run(a_command("true"))
        (choice,) = (each for each in bench.state.capabilities if each.name == "driver")
        await bench.close()
        code, errors = launcher.stop()
        assert (report.outcome, report.enforcement["driver"], report.enforcement["files"]) == (
            "ok", "landlock", "best_effort",
        )  # fmt: skip
        assert (bench.state.driver, choice.mechanism) == ("landlock", "landlock")
        assert "the namespaces driver does not work on this host" in choice.reason
        assert (code, "falling back to the landlock driver" in errors) == (0, True)


def test_launcher_imports_only_the_standard_library() -> None:
    """Every warm action shares the launcher's imports. Python's `-S` option hides other packages."""
    roots = {str(Path(str(package.__file__)).parents[1]) for package in (arl_core, arl_cpu)}
    source = "import sys, arl_cpu.launcher.__main__; print('asyncio' in sys.modules)"
    command = [sys.executable, "-S", "-c", source]
    result = subprocess.run(command, env={"PYTHONPATH": ":".join(roots)}, capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("False\n", "")
