"""A sandbox whose agent sends invalid messages."""

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


@pytest.mark.parametrize("said", [b"{", b"\xff", b"[]", b"{}", b"[" * 60_000, b'{"op": "failed"}', b'{"op": "never"}'])
def test_invalid_message_ends_sandbox_but_not_launcher(
    agents: Agents, tmp_path: Path, capfd: pytest.CaptureFixture[str], said: bytes
) -> None:
    loop = EventLoop()
    zygote = cast(Zygote, agents)
    driver = DRIVERS["namespaces"]
    host = SandboxHost(
        loop=loop, zygote=zygote, cgroup_tree=None, driver=driver, first_host_id=None, work_dir=tmp_path, base_prefix=""
    )
    cell = Sandbox(host, Owner())
    agents.made(agents.process.pid, "")
    agents.end.send(said)
    loop.run_once()
    assert agents.process.wait(5) == -9
    assert "Error" in capfd.readouterr().err
    cell.channel.close()
    agents.end.close()
