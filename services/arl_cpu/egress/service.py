"""The egress process of a node: it receives listening sockets and policies from the launcher and serves them."""

import asyncio
import json
import socket
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from arl_core.network.policy import NetworkPolicy
from arl_cpu.egress.dialer import Dialer
from arl_cpu.egress.gate import ConnectionHandler, EnvironmentGate
from arl_cpu.egress.handlers import DnsServer, serve_http, serve_proxy, serve_tls
from arl_cpu.launcher.linux.packet_channel import PacketChannel

__all__ = ["HANDLERS", "EgressService"]

HANDLERS: dict[str, ConnectionHandler] = {"proxy": serve_proxy, "http": serve_http, "tls": serve_tls}
DNS = "dns"


class EgressService:
    """The gates of all environments of a node. One loop serves them, and no environment can end it."""

    def __init__(self, channel: PacketChannel, dialer: Dialer) -> None:
        self._channel, self._dialer = channel, dialer
        self._gates: dict[str, EnvironmentGate] = {}
        self._outgoing: deque[bytes] = deque()
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Serve until the launcher ends.

        Raises every error of a message: the process must end then, because it would go on with outdated policies. The
        launcher starts it again.
        """
        loop = asyncio.get_running_loop()
        end = self._channel.socket
        received: asyncio.Queue[tuple[dict[str, Any], list[int]]] = asyncio.Queue()
        loop.add_reader(end.fileno(), self._receive, received)
        handling = asyncio.create_task(self._handle_all(received))
        try:
            done, _ = await asyncio.wait((self._ended, handling), return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            loop.remove_reader(end.fileno())
            handling.cancel()
            for gate in self._gates.values():
                gate.close()

    def _receive(self, received: "asyncio.Queue[tuple[dict[str, Any], list[int]]]") -> None:
        try:
            message = self._channel.receive()
        except (OSError, ValueError) as error:
            self._end(error)
            return
        if message is None:
            self._end(None)
        else:
            received.put_nowait(message)

    def _end(self, error: Exception | None) -> None:
        asyncio.get_running_loop().remove_reader(self._channel.socket.fileno())
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)

    async def _handle_all(self, received: "asyncio.Queue[tuple[dict[str, Any], list[int]]]") -> None:
        """Handle the messages in their order."""
        while True:
            message, files = await received.get()
            await self._handle(message, files)

    async def _handle(self, message: dict[str, Any], files: list[int]) -> None:
        match message:
            case {"op": "open", "environment": id, "policy": policy, "sockets": names}:
                await self._open(id, NetworkPolicy.from_json(policy), list(zip(names, files, strict=True)))
            case {"op": "policy", "environment": id, "policy": policy} if id in self._gates:
                self._gates[id].set_policy(NetworkPolicy.from_json(policy))
            case {"op": "usage", "environment": id, "ticket": ticket}:
                self._send({"ticket": ticket, "usage": self._gates[id].take_usage() if id in self._gates else {}})
            case {"op": "close", "environment": id} if id in self._gates:
                self._gates[id].close()  # its use is still to be reported
            case {"op": "forget", "environment": id} if id in self._gates:
                self._gates.pop(id).close()

    async def _open(self, id: str, policy: NetworkPolicy, sockets: Sequence[tuple[str, int]]) -> None:
        gate = EnvironmentGate(id, policy, self._dialer)
        if (earlier := self._gates.get(id)) is not None:
            earlier.close()
            gate.continue_usage(earlier)
        self._gates[id] = gate
        for name, file in sockets:
            opened = socket.socket(fileno=file)
            opened.setblocking(False)
            if name == DNS:
                await gate.serve_datagrams(opened, DnsServer(gate))
            else:
                await gate.serve(opened, HANDLERS[name])

    def _send(self, message: dict[str, Any]) -> None:
        self._outgoing.append(json.dumps(message).encode())
        self._write()

    def _write(self) -> None:
        """Send what the channel takes. The launcher may be busy, and waiting for it would stop all environments."""
        end, loop = self._channel.socket, asyncio.get_running_loop()
        with suppress(ConnectionError):
            while self._outgoing:
                try:
                    end.send(self._outgoing[0], socket.MSG_DONTWAIT)
                except BlockingIOError:
                    loop.add_writer(end.fileno(), self._write)
                    return
                self._outgoing.popleft()
        loop.remove_writer(end.fileno())
