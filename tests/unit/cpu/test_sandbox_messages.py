"""A sandbox whose agent sends invalid messages, and the users of a host without cgroups."""

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from arl_cpu.launcher.isolation.drivers import DRIVERS
from arl_cpu.launcher.linux.event_loop import EventLoop
from arl_cpu.launcher.sandbox.sandbox import Sandbox
from arl_cpu.launcher.sandbox.sandbox_host import SandboxHost
from arl_cpu.launcher.sandbox.zygote import Zygote
from arl_cpu.launcher.server.template_selftest import users_capability


class Agents:
    """A fake zygote whose agents send the messages that a test gives them."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(["sleep", "60"])

    def fork_agent(
        self, end: socket.socket, uid: int | None, joined: object, made: Callable[[int, str], None], *, has_range: bool
    ) -> None:
        del uid, joined
        self.end, self.made = end, made


class Owner:
    def created(self) -> None: ...

    def prepared(self) -> None: ...

    def failed(self, message: str) -> None: ...

    def died(self) -> None: ...

    def message_received(self, message: dict[str, Any], files: list[int]) -> None:
        del files
        raise KeyError(message["op"])


@pytest.fixture
def agents() -> Iterator[Agents]:
    agents = Agents()
    yield agents
    agents.process.kill()
    agents.process.wait()


def a_host(agents: Agents, work_dir: Path) -> SandboxHost:
    return SandboxHost(
        loop=EventLoop(),
        zygote=cast(Zygote, agents),
        cgroup_tree=None,
        driver=DRIVERS["namespaces"],
        first_host_id=None,
        work_dir=work_dir,
        base_prefix="",
    )


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_reason_for_one_user_without_a_cgroup_is_the_cgroup(agents: Agents, tmp_path: Path) -> None:
    capability = users_capability(a_host(agents, tmp_path))
    assert (capability.level, capability.fix) == ("absent", "give the launcher a writable cgroup")


@pytest.mark.parametrize("said", [b"{", b"\xff", b"[]", b"{}", b"[" * 60_000, b'{"op": "failed"}', b'{"op": "never"}'])
def test_invalid_message_ends_sandbox_but_not_launcher(
    agents: Agents, tmp_path: Path, capfd: pytest.CaptureFixture[str], said: bytes
) -> None:
    host = a_host(agents, tmp_path)
    cell = Sandbox(host, Owner())
    agents.made(agents.process.pid, "")
    agents.end.send(said)
    host.loop.run_once()
    assert agents.process.wait(5) == -9
    assert "Error" in capfd.readouterr().err
    cell.channel.close()
    agents.end.close()
