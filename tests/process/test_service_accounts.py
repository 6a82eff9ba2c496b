"""Test that a system started by root runs its services under unprivileged uids, and falls back if these cannot work."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from arl_local.service_accounts import account_problem, service_accounts
from arl_local.supervisor import ProcessSpec
from support.conditions import eventually
from support.reachable_python import STRANGER, a_reachable_python, an_open_directory

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes under other uids")


@pytest.fixture
def open_directory() -> Iterator[Path]:
    with an_open_directory() as directory:
        yield directory


@pytest.fixture
def reachable_python(open_directory: Path) -> str:
    """Return an interpreter with our packages that any user can run, or skip the test."""
    return a_reachable_python(open_directory)


@pytest.mark.slow
async def test_services_of_root_run_under_unprivileged_uids_of_their_own(
    reachable_python: str, open_directory: Path
) -> None:
    endpoints = {"TANGRAM_ENDPOINTS": json.dumps({"a": {"url": "https://a.example"}})}
    with running(reachable_python, open_directory / "state", endpoints) as state:
        await eventually(lambda: _phase(state) == "ready", timeout_s=90)
        assert (state / "service_account").read_text() == "own"
        pids = {name: entry["pid"] for name, entry in _processes(state)["processes"].items()}
        uids = {name: _ids_of(pids[name], "Uid") for name in ("gateway", "admission", "scheduler", "api", "postgres")}
        assert all(len(found) == 1 and 0 not in found for found in uids.values())
        assert len(set.union(*uids.values())) == 5
        assert _ids_of(pids["gateway"], "CapEff", base=16) == {0}
        headers = {"authorization": f"Bearer {(state / 'api_key').read_text()}"}
        url = json.loads((state / "endpoints.json").read_text())["gateway"]
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as api:
            action = (await api.post("/v1/actions", json={"task": "t", "argv": ["true"]}, params={"wait": 50})).json()
        assert action["outcome"] == "ok"


def test_file_that_the_account_cannot_read_is_named(open_directory: Path, reachable_python: str) -> None:
    (secret := open_directory / "certificate").touch(mode=0o600)
    problem = account_problem([_spec(secret)], STRANGER, python=reachable_python)
    assert problem == f"not readable: {secret}"


@pytest.mark.parametrize(("mode", "problem"), [(0o600, "not readable: {}"), (0o644, None)])
def test_key_file_decides_whether_the_broker_can_have_an_account(
    open_directory: Path, reachable_python: str, mode: int, problem: str | None
) -> None:
    (key := open_directory / "key").touch(mode=mode)
    endpoints = {"a": {"url": "https://a.example", "key_file": str(key)}, "b": {"url": "https://b.example"}}
    env = {"TANGRAM_DATABASE_URL": "postgresql://nowhere", "TANGRAM_ENDPOINTS": json.dumps(endpoints)}
    found = account_problem(
        [ProcessSpec(name="api", argv=("api",), env=env, ready="http://nowhere")], STRANGER, python=reachable_python
    )
    if problem is not None:
        assert found == problem.format(key)
    else:
        assert "not readable" not in (found or ""), "only the database is missing"


def test_interpreter_that_the_account_cannot_run_is_a_problem(tmp_path: Path) -> None:
    (closed := tmp_path / "python").touch(mode=0o700)
    assert "Permission denied" in (account_problem([_spec(closed)], STRANGER, python=str(closed)) or "")


def test_accounts_of_two_systems_differ(tmp_path: Path) -> None:
    first, second = service_accounts(tmp_path / "a"), service_accounts(tmp_path / "b")
    assert first.keys() == second.keys() == {"admission", "scheduler", "gateway", "api", "database-relay"}
    assert len({account.uid for account in (*first.values(), *second.values())}) == 10


@contextmanager
def running(python: str, state: Path, variables: Mapping[str, str]) -> Iterator[Path]:
    """Run a simulated machine with its own Postgres; remove it at the end."""
    command = [python, "-m", "arl_local", "--dir", str(state), "--driver", "simulated"]
    env = {**os.environ, **variables}
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield state
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        subprocess.run([python, "-m", "arl_local", "--dir", str(state), "--purge"], check=True)


def _spec(path: Path) -> ProcessSpec:
    env = {"TANGRAM_DATABASE_URL": "postgresql://nowhere", "OTEL_EXPORTER_OTLP_CERTIFICATE": str(path)}
    return ProcessSpec(name="gateway", argv=("gateway",), env=env, ready="http://nowhere")


def _processes(state: Path) -> dict[str, dict[str, dict[str, int]]]:
    found: dict[str, dict[str, dict[str, int]]] = json.loads((state / "processes.json").read_text())
    return found


def _phase(state: Path) -> object:
    return _processes(state)["phase"] if (state / "processes.json").exists() else None


def _ids_of(pid: int, field: str, *, base: int = 10) -> set[int]:
    """Return the numbers in a line of the process's status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith(f"{field}:")]
    return {int(number, base) for number in line.split()[1:]}
