"""The zygote that forks environments survives invalid requests."""

import gc
import os
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from arl_cpu.launcher.isolation.drivers import DRIVERS
from arl_cpu.launcher.sandbox.zygote import Zygote, start_zygote


@pytest.fixture
def zygote() -> Iterator[Zygote]:
    zygote = start_zygote(DRIVERS["unsafe-local"])
    gc.unfreeze()
    zygote.channel.socket.settimeout(10)
    yield zygote
    zygote.channel.close()
    os.waitpid(zygote.pid, 0)


def made(zygote: Zygote, wanted: dict[str, str]) -> int:
    """Fork a worker for the request and return its process id."""
    pids: list[int] = []
    ours, theirs = socket.socketpair()
    with ours:
        zygote.fork_worker(theirs.detach(), None, wanted, lambda pid, _error: pids.append(pid))
        assert zygote.handle_response()
    return pids[0]


def test_invalid_request_is_answered_and_zygote_continues(zygote: Zygote) -> None:
    for packet in (b"no json", b"[]", b"{}", b'{"ticket": 7, "join": []}', b'{"ticket": 7, "is_work": true}', b"\xff"):
        zygote.channel.socket.send(packet)
        assert zygote.handle_response()
    assert made(zygote, {"op": "list"}) > 0


def test_request_may_be_longer_than_a_packet(zygote: Zygote) -> None:
    assert made(zygote, {"op": "list", "after": "a" * (1 << 20)}) > 0
    assert zygote.is_idle


def test_too_long_request_is_refused_and_leaves_zygote_idle(zygote: Zygote) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(OSError, match="long"):
            zygote.fork_agent(theirs, None, ["/x" * (1 << 20)], lambda _pid, _error: None)
        assert (zygote.is_idle, len(os.listdir("/proc/self/fd"))) == (True, before - 1)
        with suppress(ConnectionError):
            assert ours.recv(1) == b""
    assert made(zygote, {"op": "list"}) > 0
