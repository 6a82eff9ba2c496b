"""Test the gate of one environment in the egress process with real sockets."""

import asyncio
import socket
from collections.abc import Sequence
from contextlib import suppress

import pytest

from arl_core.network.policy import IpAddress, NetworkPolicy
from arl_cpu.egress.dialer import Dialer
from arl_cpu.egress.gate import EnvironmentGate, GateConnection
from arl_cpu.egress.service import EgressService
from arl_cpu.launcher.linux.packet_channel import PacketChannel

OPEN = NetworkPolicy("open")


class NoNames:
    async def resolve(self, name: str) -> Sequence[IpAddress]:
        raise AssertionError(name)


def a_gate() -> EnvironmentGate:
    return EnvironmentGate("one", OPEN, Dialer(NoNames()))


def a_listener() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    return listener


@pytest.mark.parametrize("steps", [3, 4])
async def test_connection_of_the_moment_of_closing_is_not_handled(steps: int) -> None:
    """After these steps of the loop, the connection has a transport, and its task is about to begin or has begun."""
    handled: list[NetworkPolicy] = []

    async def handler(connection: GateConnection) -> None:
        handled.append(connection.gate.policy)

    gate, listener = a_gate(), a_listener()
    await gate.serve(listener, handler)
    with socket.create_connection(listener.getsockname()) as peer:
        for _ in range(steps):
            await asyncio.sleep(0)
        before = len(handled)
        gate.close()
        peer.setblocking(False)
        with suppress(ConnectionError):
            assert await asyncio.get_running_loop().sock_recv(peer, 1) == b""
    assert handled[before:] == []


async def test_finished_connection_counts_until_its_peer_has_read_everything() -> None:
    async def handler(connection: GateConnection) -> None:
        connection.writer.write(bytes(8 << 20))

    gate, listener = a_gate(), a_listener()
    await gate.serve(listener, handler)
    peer = socket.socket()
    peer.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(peer, listener.getsockname())
    await loop.sock_recv(peer, 1)  # the handler has written and ended
    assert gate.connection_count == 1
    gate.close()
    with suppress(ConnectionError):
        while await loop.sock_recv(peer, 1 << 20):
            pass
    peer.close()


async def test_invalid_message_ends_the_process() -> None:
    """It would otherwise go on with outdated policies."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    service = EgressService(PacketChannel(theirs), Dialer(NoNames()))
    PacketChannel(ours).send({"op": "open", "environment": "one", "policy": "open", "sockets": ["proxy"]})
    with pytest.raises(ValueError, match="zip"):
        await asyncio.wait_for(service.run(), 10)
    ours.close()
    theirs.close()
