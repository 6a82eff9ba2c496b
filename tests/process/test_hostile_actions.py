"""Test hostile actions against a running system through its public API."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from arl_local.postgres.postgres_paths import PostgresPaths
from arl_tangram import Action, ActionOutcome, Tangram
from support.machine import Machine, a_machine


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with a_machine(tmp_path_factory.mktemp("hostile") / "state") as machine:
        yield machine


@pytest.fixture
def tangram(machine: Machine) -> Iterator[Tangram]:
    """Provide a client; afterwards check that the system works and no action runs on a node."""
    with machine.client() as tangram:
        yield tangram
        assert tangram.run(task="after", argv=["true"], wait_timeout_s=20).outcome is ActionOutcome.OK
        assert not any(node.running for node in tangram.nodes().items)


def processes_with(marker: str) -> list[int]:
    """Return the processes of this machine whose command line contains the marker."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def printed(action: Action) -> str:
    assert action.result is not None
    return action.result.stdout.text


class TestAccess:
    def test_action_cannot_connect_to_services_or_postgres(self, machine: Machine, tangram: Tangram) -> None:
        ports = [urlsplit(url).port for url in machine.status()["endpoints"].values()]
        postgres = PostgresPaths.for_state_dir(machine.directory).sockets
        sockets = [str(path) for path in (*postgres.glob(".s.PGSQL.*"), *machine.directory.rglob("*.sock"))]
        assert any("PGSQL" in path for path in sockets), "Postgres listens"
        code = f"""
import socket
reached = []
for port in {ports!r}:
    try:
        socket.create_connection(("127.0.0.1", port), 1)
        reached.append(port)
    except OSError:
        pass
for path in {sockets!r}:
    try:
        s = socket.socket(socket.AF_UNIX); s.connect(path)
        reached.append(path)
    except OSError:
        pass
print(reached)
"""
        action = tangram.run(task="hostile", source=code)
        assert (action.outcome, printed(action)) == (ActionOutcome.OK, "[]\n")

    def test_action_cannot_read_secrets_of_the_system(self, machine: Machine, tangram: Tangram) -> None:
        secrets = [str(path) for path in (machine.directory / "api_key", *(machine.directory / "tokens").iterdir())]
        for path in (*secrets, "/etc/shadow", str(Path(__file__))):
            assert tangram.run(task="hostile", argv=["cat", path]).outcome is ActionOutcome.USER_ERROR, path
        variables = printed(tangram.run(task="hostile", argv=["env"]))
        assert "TANGRAM" not in variables

    def test_action_cannot_write_sysctls(self, tangram: Tangram) -> None:
        action = tangram.run(task="hostile", source="open('/proc/sys/kernel/core_pattern', 'w')")
        assert action.outcome is ActionOutcome.USER_ERROR

    def test_action_cannot_find_files_of_another_trajectory(self, tangram: Tangram) -> None:
        tangram.put_files("hostile", "victim", {"mine": "secret"})
        seen = tangram.run(task="hostile", trajectory="thief", argv=["sh", "-c", "find / -name mine 2>/dev/null; true"])
        assert printed(seen) == ""
        assert tangram.get_files("hostile", "victim", ["mine"]) == {"mine": b"secret"}
        for trajectory in ("victim", "thief"):
            tangram.end_trajectory("hostile", trajectory)

    def test_action_cannot_kill_the_agent(self, tangram: Tangram) -> None:
        source = "import os\nfor number in (9, 15, 19):\n"
        source += "    try: os.kill(1, number)\n    except PermissionError: pass\nprint('still here')"
        action = tangram.run(task="hostile", trajectory="killer", source=source)
        assert (action.outcome, printed(action)) == (ActionOutcome.OK, "still here\n")
        tangram.end_trajectory("hostile", "killer")


class TestExcessiveUse:
    def test_detached_processes_are_killed_at_the_timeout(self, tangram: Tangram) -> None:
        marker = f"31{os.getpid()}"
        command = f"setsid sh -c 'sleep {marker} & sleep {marker}' & (sleep {marker} &) ; sleep {marker}"
        action = tangram.run(task="hostile", argv=["sh", "-c", command], timeout_s=0.5)
        assert action.outcome is ActionOutcome.USER_TIMEOUT
        assert processes_with(marker) == []

    def test_fork_bomb_ends_at_its_timeout(self, tangram: Tangram) -> None:
        source = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
        action = tangram.run(task="hostile", source=source, timeout_s=1.0, pids=64)
        assert action.outcome is ActionOutcome.USER_TIMEOUT

    def test_ten_megabytes_of_output_are_truncated_and_counted_completely(self, tangram: Tangram) -> None:
        action = tangram.run(task="hostile", source="import sys\nfor _ in range(10): sys.stdout.write('x' * 10**6)")
        assert action.outcome is ActionOutcome.OK
        assert action.result is not None
        stream = action.result.stdout
        assert (stream.truncated, stream.total_bytes, len(stream.text)) == (True, 10**7, 1 << 20)

    def test_memory_bomb_is_stopped_at_its_limit(self, machine: Machine, tangram: Tangram) -> None:
        levels = {entry.name: entry.level for node in tangram.nodes().items for entry in node.enforced}
        source = "hoard = []\nwhile True: hoard.append(bytearray(8 << 20))"
        action = tangram.run(task="hostile", source=source, memory_mib=128, timeout_s=30)
        assert action.result is not None
        assert action.result.peak_memory_mib < 256
        if levels["memory"] == "enforced":
            assert (action.outcome, action.reason) == (ActionOutcome.LIMIT_EXCEEDED, "memory")
        else:
            assert action.outcome in (ActionOutcome.USER_ERROR, ActionOutcome.LIMIT_EXCEEDED)

    def test_binary_output_is_returned_unchanged(self, tangram: Tangram) -> None:
        action = tangram.run(task="hostile", source="import sys; sys.stdout.buffer.write(bytes(range(256)))")
        assert action.result is not None
        assert action.result.stdout.base64 is not None
        assert json.loads(action.model_dump_json())["outcome"] == "ok"
