"""Test that `tangram up` finds wrong settings and ports before it starts anything."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.machine import Machine

UNPRIVILEGED = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
NO_PRIVILEGED_PORTS = ("setpriv", "--bounding-set=-net_bind_service", "--inh-caps=-net_bind_service")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "state")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def refused(machine: Machine, **settings: str) -> list[str]:
    """Return the lines of the error of `tangram up`, which must have started nothing."""
    variables = {f"TANGRAM_{name.upper()}": value for name, value in settings.items()}
    done = machine.cli("up", "--detach", check=False, variables=variables)
    assert done.returncode == 2
    assert not (machine.directory / "postgres").exists()
    seen = machine.directory / "processes.json"
    assert not seen.exists() or json.loads(seen.read_text())["processes"] == {}
    return done.stderr.partition("tangram: ")[2].splitlines()


def test_every_wrong_setting_of_every_service_is_named_at_once(machine: Machine) -> None:
    lines = refused(
        machine,
        rate_limit="abc",
        pool_size="0",
        resources="{x",
        policy="best",
        sandbox_pool_size="many",
        default_max_queued="-1",
        slots="0",
    )
    named = sorted(re.findall(r"TANGRAM_(\w+)", "\n".join(lines)))
    assert named == sorted(
        ("RATE_LIMIT", "POOL_SIZE", "RESOURCES", "POLICY", "SANDBOX_POOL_SIZE", "DEFAULT_MAX_QUEUED", "SLOTS")
    )
    assert "TANGRAM_RATE_LIMIT is 'abc': Input should be a valid integer" in "\n".join(lines)
    assert len(lines) == len(named)


def test_reward_function_that_cannot_be_imported_is_named(machine: Machine) -> None:
    functions = {"a": "no_such_module:f", "b": "json:nothing", "c": "json:__name__", "fine": "json:dumps"}
    lines = refused(machine, reward_functions=json.dumps(functions))
    assert lines == [
        "TANGRAM_REWARD_FUNCTIONS: a: cannot use no_such_module:f: ModuleNotFoundError: No module named"
        " 'no_such_module'",
        "TANGRAM_REWARD_FUNCTIONS: b: cannot use json:nothing: AttributeError: module 'json' has no attribute"
        " 'nothing'",
        "TANGRAM_REWARD_FUNCTIONS: c: cannot use json:__name__: TypeError: __name__ is no function",
    ]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("driver", "docker", "TANGRAM_DRIVER is 'docker': must be one of auto, namespaces"),
        ("database_url", "tangram", "TANGRAM_DATABASE_URL: must begin with postgresql://"),
    ],
)
def test_wrong_variable_of_the_supervisor_is_named(machine: Machine, name: str, value: str, said: str) -> None:
    (line,) = refused(machine, **{name: value})
    assert line.startswith(said)


def test_reward_node_started_by_hand_ends_if_a_function_cannot_be_imported() -> None:
    settings = {
        "port": "1",
        "database_url": "postgresql://",
        "service_token": "t" * 16,
        "scheduler_url": "http://s",
        "reward_functions": '{"a": "no_such_module:f"}',
    }
    environment = os.environ | {f"TANGRAM_{name.upper()}": value for name, value in settings.items()}
    argv = [sys.executable, "-m", "arl_gpu"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("TANGRAM_REWARD_FUNCTIONS: a: cannot use no_such_module:f")


class TestPorts:
    def test_taken_port_is_refused(self, machine: Machine, listener: socket.socket) -> None:
        port = listener.getsockname()[1]
        done = machine.cli("up", "--detach", "--port", str(port), check=False)
        assert (done.returncode, done.stderr) == (
            1,
            f"tangram: port {port} on 127.0.0.1 is taken; choose another with --port\n",
        )

    @pytest.mark.skipif(os.geteuid() == 0 and not Path("/usr/bin/setpriv").exists(), reason="needs setpriv")
    @pytest.mark.skipif(int(UNPRIVILEGED.read_text()) <= 80, reason="everybody may use port 80 here")
    def test_privileged_port_is_refused_for_an_ordinary_user(self, tmp_path: Path) -> None:
        argv = [sys.executable, "-m", "arl_local", "--dir", str(tmp_path), "--port", "80"]
        confined = [*NO_PRIVILEGED_PORTS, *argv] if os.geteuid() == 0 else argv
        done = subprocess.run(confined, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1
        assert done.stderr.startswith("only root may use port 80; choose a port from ")

    def test_impossible_port_is_refused(self, machine: Machine) -> None:
        done = machine.cli("up", "--port", "99999", check=False)
        assert done.returncode == 2
        assert "65535" in done.stderr
        assert not machine.directory.exists()
