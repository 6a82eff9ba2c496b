"""Test the supervisor with real processes: restart, readiness, stop order and logs."""

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from arl_local.supervisor import ProcessSpec, StartFailed, Supervisor, restart_delay_s
from arl_local.supervisor.log_files import LogFile
from support.conditions import eventually, is_running

ENV = {"PATH": os.environ["PATH"]}


async def at_once() -> bool:
    return True


def a_process(script: str, *, name: str = "dummy", **changes: Any) -> ProcessSpec:
    """Return a process that runs a shell script and is ready as soon as it has started."""
    defaults: dict[str, Any] = {"env": ENV, "ready": at_once, "stop_timeout_s": 10.0}
    return ProcessSpec(name=name, argv=("sh", "-c", script), **{**defaults, **changes})


def seen(directory: Path, name: str = "dummy") -> Mapping[str, Any]:
    """Return the entry of a process in `processes.json`."""
    return dict(json.loads((directory / "processes.json").read_text())["processes"].get(name, {}))


def log_of(directory: Path, name: str = "dummy") -> str:
    path = directory / "logs" / f"{name}.log"
    return path.read_text() if path.exists() else ""


def has_logged(directory: Path, name: str, text: str) -> bool:
    return text in log_of(directory, name)


async def start_and_stop(directory: Path, spec: ProcessSpec) -> None:
    async with Supervisor(directory) as supervisor:
        supervisor.start(spec)
        await supervisor.wait_ready(spec.name, timeout_s=20)


class TestRestart:
    async def test_killed_process_is_restarted(self, tmp_path: Path) -> None:
        async with Supervisor(tmp_path) as supervisor:
            supervisor.start(a_process("exec sleep 60"))
            await supervisor.wait_ready("dummy", timeout_s=5)
            first = seen(tmp_path)["pid"]
            os.kill(first, signal.SIGKILL)
            await eventually(lambda: seen(tmp_path)["restarts"] == 1 and seen(tmp_path)["state"] == "ready")
            again = seen(tmp_path)
            assert again["pid"] != first
            assert again["last_exit"] == "SIGKILL"
        assert not is_running(again["pid"])

    async def test_children_of_a_killed_process_are_killed(self, tmp_path: Path) -> None:
        async with Supervisor(tmp_path) as supervisor:
            supervisor.start(a_process("sleep 60 & echo $!; wait"))
            await eventually(lambda: log_of(tmp_path).strip() != "")
            orphan = int(log_of(tmp_path))
            os.kill(seen(tmp_path)["pid"], signal.SIGKILL)
            await eventually(lambda: not is_running(orphan))

    async def test_before_start_hook_runs_before_every_start(self, tmp_path: Path) -> None:
        starts: list[int] = []

        async def before_start() -> None:
            starts.append(len(starts))

        async with Supervisor(tmp_path) as supervisor:
            supervisor.start(a_process("exit 3", before_start=before_start))
            await eventually(lambda: len(starts) >= 2)
            await eventually(lambda: seen(tmp_path)["last_exit"] == "exit code 3")

    async def test_process_that_never_gets_ready_fails_the_start(self, tmp_path: Path) -> None:
        spec = a_process("echo no such luck; exit 1", ready="http://127.0.0.1:9/readyz")
        with pytest.raises(StartFailed, match=r"(?s)ended 5 times before it was ready.*no such luck"):
            await start_and_stop(tmp_path, spec)
        assert json.loads((tmp_path / "processes.json").read_text())["phase"] == "failed"

    async def test_missing_program_fails_the_start(self, tmp_path: Path) -> None:
        spec = ProcessSpec(name="dummy", argv=("/nonexistent",), env=ENV, ready=at_once)
        with pytest.raises(StartFailed):
            await start_and_stop(tmp_path, spec)

    @pytest.mark.parametrize(
        ("deaths", "jitter", "delay_s"), [(1, 1.0, 0.1), (1, 0.0, 0.05), (2, 1.0, 0.2), (5, 1.0, 1.6), (90, 1.0, 10.0)]
    )
    def test_restart_delay_doubles_up_to_a_limit(self, deaths: int, jitter: float, delay_s: float) -> None:
        assert restart_delay_s(deaths, jitter=jitter) == pytest.approx(delay_s)


class TestStop:
    async def test_processes_stop_in_their_stop_order(self, tmp_path: Path) -> None:
        order = tmp_path / "order"
        async with Supervisor(tmp_path) as supervisor:
            for name, number in (("last", 2), ("first", 0), ("middle", 1)):
                script = f"trap 'echo {name} >> {order}; exit 0' TERM; echo up; while :; do sleep 0.02; done"
                supervisor.start(a_process(script, name=name, stop_order=number))
            for name in ("last", "first", "middle"):
                await eventually(partial(has_logged, tmp_path, name, "up"))
        assert order.read_text().split() == ["first", "middle", "last"]

    async def test_process_that_ignores_sigterm_is_killed_after_its_timeout(self, tmp_path: Path) -> None:
        async with Supervisor(tmp_path) as supervisor:
            script = "trap '' TERM; echo up; while :; do sleep 0.02; done"
            supervisor.start(a_process(script, stop_timeout_s=0.2))
            await eventually(lambda: "up" in log_of(tmp_path))
            pid = seen(tmp_path)["pid"]
        assert not is_running(pid)
        assert (seen(tmp_path)["state"], seen(tmp_path)["last_exit"]) == ("stopped", "SIGKILL")

    async def test_process_waiting_for_a_restart_is_not_started_during_stop(self, tmp_path: Path) -> None:
        async with Supervisor(tmp_path) as supervisor:
            supervisor.start(a_process("exit 1"))
            await eventually(lambda: seen(tmp_path)["restarts"] >= 3)
        assert seen(tmp_path)["state"] == "stopped"

    async def test_processes_run_in_their_own_session_and_ignore_ctrl_c(self, tmp_path: Path) -> None:
        async with Supervisor(tmp_path) as supervisor:
            supervisor.start(a_process("exec sleep 60"))
            await supervisor.wait_ready("dummy", timeout_s=5)
            pid = seen(tmp_path)["pid"]
            assert os.getpgid(pid) == pid
            assert os.getsid(pid) == pid


class TestReadiness:
    async def test_process_is_unready_while_its_probe_fails(self, tmp_path: Path) -> None:
        well = [True]

        async def is_well() -> bool:
            return well[0]

        async with Supervisor(tmp_path) as supervisor:
            supervisor.start(a_process("exec sleep 60", ready=is_well, probe_interval_s=0.01))
            await supervisor.wait_ready("dummy", timeout_s=5)
            well[0] = False
            await eventually(lambda: seen(tmp_path)["state"] == "unready")
            assert (seen(tmp_path)["restarts"], is_running(seen(tmp_path)["pid"])) == (0, True)
            well[0] = True
            await eventually(lambda: seen(tmp_path)["state"] == "ready")

    async def test_readiness_probe_that_raises_is_repeated(self, tmp_path: Path) -> None:
        answers = [True, False]

        async def fails_once() -> bool:
            if not answers.pop():
                raise RuntimeError("nobody knows")
            return True

        async with Supervisor(tmp_path) as supervisor:
            supervisor.start(a_process("exec sleep 60", ready=fails_once))
            await supervisor.wait_ready("dummy", timeout_s=5)


class TestStateAndLogs:
    async def test_supervisor_without_its_directory_still_stops_processes(self, tmp_path: Path) -> None:
        directory = tmp_path / "state"
        directory.mkdir()
        async with Supervisor(directory) as supervisor:
            supervisor.start(a_process("exec sleep 60"))
            await supervisor.wait_ready("dummy", timeout_s=10)
            pid = int(seen(directory)["pid"])
            shutil.rmtree(directory)
            async with asyncio.timeout(10):
                await supervisor.stop()
        assert not is_running(pid)

    async def test_process_gets_only_the_variables_of_its_spec(self, tmp_path: Path) -> None:
        async with Supervisor(tmp_path) as supervisor:
            supervisor.start(a_process("env; exec sleep 60", env={**ENV, "TANGRAM_PORT": "1"}))
            await eventually(lambda: "TANGRAM_PORT=1" in log_of(tmp_path))
            names = {line.partition("=")[0] for line in log_of(tmp_path).splitlines()}
            assert names - {"PWD", "OLDPWD", "SHLVL", "_"} == {"PATH", "TANGRAM_PORT"}

    def test_full_log_is_rotated_while_its_writer_continues(self, tmp_path: Path) -> None:
        log = LogFile(tmp_path / "dummy.log", limit_bytes=10)
        with log.open() as writer:
            writer.write(b"0123456789\n")
            writer.flush()
            log.rotate_if_full()
            writer.write(b"next\n")
            writer.flush()
            log.rotate_if_full()
        assert log.path.read_text() == "next\n"
        assert (tmp_path / "dummy.log.1").read_text() == "0123456789\n"

    async def test_http_readiness_is_probed_until_200(self, tmp_path: Path) -> None:
        answers = [b"HTTP/1.1 200 OK", b"HTTP/1.1 503 Service Unavailable"]

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answers.pop() + b"\r\ncontent-length: 0\r\n\r\n")
            with suppress(ConnectionError):
                await writer.drain()
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server, Supervisor(tmp_path) as supervisor:
            port = server.sockets[0].getsockname()[1]
            supervisor.start(a_process("exec sleep 60", ready=f"http://127.0.0.1:{port}/readyz"))
            await supervisor.wait_ready("dummy", timeout_s=5)
        assert answers == []
