"""Test one machine under its supervisor, with a real Postgres and dummy services."""

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import pytest_asyncio

from arl_kit.service_tokens import pairwise_key
from arl_local.postgres.postgres_paths import PostgresPaths
from arl_tangram.cli.local_state import LocalState
from support.conditions import eventually, is_running

MACHINE = [sys.executable, str(Path(__file__).parents[1] / "support" / "dummy_machine.py")]
TANGRAM = [sys.executable, "-m", "arl_tangram.cli"]
SAID = {
    "CUDA_VISIBLE_DEVICES": "1",
    "LD_LIBRARY_PATH": "/opt/driver",
    "WANDB_API_KEY": "secret",
    "https_proxy": "http://proxy.example",
    "TANGRAM_ENDPOINTS": '{"search": {"url": "https://search.example", "key": "sk-of-search"}}',
}
EVERYBODY = {"postgres", "cpu-launcher", "admission", "scheduler", "cpu", "gpu", "api", "gateway"}


def run(*argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60, **options)


class Machine:
    """One state directory and, while it is up, its supervisor."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.state = LocalState(directory)
        self._supervisor: subprocess.Popen[bytes] | None = None

    async def up(self, *arguments: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        argv = [*MACHINE, "--dir", str(self.directory), "--unsafe-local", *arguments]
        supervisor = self._supervisor = subprocess.Popen(argv, stdin=stdin, env={**os.environ, **SAID})
        await eventually(lambda: self.is_ready or supervisor.poll() is not None)
        assert supervisor.returncode is None
        return supervisor

    @property
    def is_ready(self) -> bool:
        return self.state.supervisor_pid() is not None and self.state.processes().get("phase") == "ready"

    def pids(self) -> dict[str, int]:
        return {name: process["pid"] for name, process in self.state.processes()["processes"].items()}

    def environment_of(self, name: str) -> dict[str, str]:
        pairs = Path(f"/proc/{self.pids()[name]}/environ").read_text().rstrip("\0").split("\0")
        return dict(pair.split("=", 1) for pair in pairs)

    def end(self) -> None:
        if self._supervisor is not None and self._supervisor.poll() is None:
            self._supervisor.terminate()
            self._supervisor.wait(30)


@contextmanager
def a_machine() -> Iterator[Machine]:
    """Yield a machine, then stop and purge it and check that nothing remains."""
    machine = Machine(Path(tempfile.mkdtemp(prefix="tangram-test-")))
    home = PostgresPaths.for_state_dir(machine.directory)
    try:
        yield machine
    finally:
        machine.end()
        purged = run(*MACHINE, "--dir", str(machine.directory), "--purge")
    assert purged.returncode == 0, purged.stderr
    assert not machine.directory.exists()
    assert not home.root.exists()


@pytest.fixture(scope="module")
def stopped() -> Iterator[Machine]:
    """Provide a stopped machine for tests that start and stop it themselves."""
    with a_machine() as machine:
        yield machine
        machine.end()


@pytest_asyncio.fixture(scope="module")
async def ready() -> AsyncIterator[Machine]:
    """Provide a running machine for tests that do not change it."""
    with a_machine() as machine:
        await machine.up()
        yield machine


class TestUp:
    def test_every_service_is_ready_at_its_url(self, ready: Machine) -> None:
        endpoints = ready.state.service_urls()
        assert endpoints.keys() == EVERYBODY - {"postgres", "cpu-launcher"}
        for url in endpoints.values():
            with urlopen(f"{url}/readyz") as answer:
                assert answer.status == 200

    def test_state_directory_and_secrets_are_private(self, ready: Machine) -> None:
        secrets = [ready.directory / "api_key", *ready.directory.glob("tokens/*"), *ready.directory.glob("passwords/*")]
        assert len(secrets) == 14
        assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}
        assert stat.S_IMODE(ready.directory.stat().st_mode) == 0o700

    def test_each_process_gets_only_the_variables_it_uses(self, ready: Machine) -> None:
        told = {name: ready.environment_of(name).keys() for name in EVERYBODY}
        assert not any("TOKEN" in key or "DATABASE" in key for key in told["cpu-launcher"] | told["postgres"])
        urls = {ready.environment_of(name)["TANGRAM_DATABASE_URL"] for name in ready.state.service_urls()}
        assert len(urls) == 6
        assert "TANGRAM_LAUNCHER_SOCKET" not in told["gateway"] | told["admission"] | told["scheduler"]

    def test_device_and_proxy_variables_reach_only_the_services_using_them(self, ready: Machine) -> None:
        told = {name: ready.environment_of(name) for name in EVERYBODY}
        assert {name for name in EVERYBODY if told[name].get("CUDA_VISIBLE_DEVICES") == "1"} == {"gpu"}
        assert {name for name in EVERYBODY if told[name].get("LD_LIBRARY_PATH") == "/opt/driver"} == {"gpu"}
        proxied = {name for name in EVERYBODY if told[name].get("https_proxy") == "http://proxy.example"}
        assert proxied == {"api", "cpu"}, "endpoints, and registries of images"
        assert {name for name in EVERYBODY if "sk-of-search" in str(told[name])} == {"api"}
        assert not any("WANDB_API_KEY" in environment for environment in told.values())

    @pytest.mark.parametrize(
        ("service", "callers"),
        [
            ("gateway", set()),
            ("admission", {"gateway"}),
            ("scheduler", {"gateway", "admission", "cpu", "gpu", "api"}),
            ("cpu", {"scheduler", "gateway"}),
            ("gpu", {"scheduler"}),
            ("api", {"scheduler"}),
        ],
    )
    def test_service_accepts_only_tokens_of_its_callers(self, ready: Machine, service: str, callers: set[str]) -> None:
        own = ready.environment_of(service)
        audience = f"node/{own['TANGRAM_NODE_NAME']}" if "TANGRAM_NODE_NAME" in own else service
        secrets = {name: ready.environment_of(name)["TANGRAM_SERVICE_TOKEN"] for name in callers}
        keys = {name: pairwise_key(secret, audience) for name, secret in secrets.items()}
        assert json.loads(own["TANGRAM_CALLER_KEYS"]) == keys
        assert not set(secrets.values()) & set(own.values())

    def test_second_up_attaches_to_the_first(self, ready: Machine) -> None:
        before = ready.pids()
        assert run(*MACHINE, "--dir", str(ready.directory)).returncode == 4
        attached = run(*TANGRAM, "up", "--dir", str(ready.directory), "-o", "json")
        assert json.loads(attached.stdout)["endpoints"] == ready.state.service_urls()
        assert ready.pids() == before

    def test_status_json_lists_every_process(self, ready: Machine) -> None:
        status = run(*TANGRAM, "status", "--dir", str(ready.directory), "-o", "json")
        assert status.returncode == 0
        assert json.loads(status.stdout)["processes"].keys() == EVERYBODY

    def test_system_logs_filter_by_process_name(self, ready: Machine) -> None:
        logs = run(*TANGRAM, "system", "logs", "postgres", "--dir", str(ready.directory), "-o", "json")
        assert {json.loads(line)["service"] for line in logs.stdout.splitlines()} == {"postgres"}
        assert run(*TANGRAM, "system", "logs", "nobody", "--dir", str(ready.directory)).returncode == 2


class TestDown:
    async def test_interrupt_signal_stops_every_process(self, stopped: Machine) -> None:
        supervisor = await stopped.up()
        pids = stopped.pids()
        supervisor.send_signal(signal.SIGINT)
        assert supervisor.wait(30) == 0
        assert not any(map(is_running, pids.values()))
        assert stopped.state.processes()["phase"] == "stopped"
        status = run(*TANGRAM, "status", "--dir", str(stopped.directory))
        assert status.returncode == 3

    async def test_down_stops_a_running_system(self, stopped: Machine) -> None:
        supervisor = await stopped.up()
        assert run(*TANGRAM, "down", "--dir", str(stopped.directory)).returncode == 0
        assert supervisor.wait(30) == 0
        assert run(*TANGRAM, "down", "--dir", str(stopped.directory)).returncode == 3

    async def test_end_of_stdin_stops_the_system_with_until_eof(self, stopped: Machine) -> None:
        supervisor = await stopped.up("--until-eof", stdin=subprocess.PIPE)
        assert supervisor.stdin is not None
        supervisor.stdin.close()
        assert supervisor.wait(30) == 0


class TestStatus:
    @pytest.mark.slow
    async def test_stopped_process_is_unready_until_it_answers_again(self, ready: Machine) -> None:
        def state() -> str:
            return str(ready.state.processes()["processes"]["gateway"]["state"])

        gateway = ready.pids()["gateway"]
        os.kill(gateway, signal.SIGSTOP)
        try:
            await eventually(lambda: state() == "unready")
            status = run(*TANGRAM, "status", "--dir", str(ready.directory))
            assert (status.returncode, status.stdout.partition(" ")[0]) == (1, "unready")
        finally:
            os.kill(gateway, signal.SIGCONT)
        await eventually(lambda: state() == "ready")
        assert run(*TANGRAM, "status", "--dir", str(ready.directory)).returncode == 0


class TestCrash:
    async def test_killed_supervisor_leaves_no_process_and_keeps_its_state(self, stopped: Machine) -> None:
        supervisor = await stopped.up()
        pids, endpoints, key = stopped.pids(), stopped.state.service_urls(), stopped.state.api_key()
        supervisor.kill()
        supervisor.wait()
        await eventually(lambda: not any(map(is_running, pids.values())))
        assert stopped.state.supervisor_pid() is None
        await stopped.up()
        assert (stopped.state.service_urls(), stopped.state.api_key()) == (endpoints, key)
        stopped.end()

    @pytest.mark.parametrize("victim", ["postgres", "gateway"])
    async def test_killed_process_is_restarted(self, ready: Machine, victim: str) -> None:
        first = ready.pids()[victim]
        os.kill(first, signal.SIGKILL)
        await eventually(
            lambda: (
                ready.pids()[victim] not in (first, None)
                and ready.state.processes()["processes"][victim]["state"] == "ready"
            )
        )
