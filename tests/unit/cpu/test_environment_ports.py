"""Test the limits of connections to servers inside environments at a node."""

import asyncio
import socket
from contextlib import AsyncExitStack
from uuid import UUID, uuid4

import pytest

from arl_cpu.contract.environment_access import EnvironmentSocketError
from arl_cpu.node import ports as node_ports
from arl_cpu.node.ports import EnvironmentPorts
from arl_wire.errors import NothingListens, Unavailable
from support.executor import FakeExecutor


async def test_project_leaves_connections_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_ports, "MAX_CONNECTIONS", 8)
    ports = EnvironmentPorts(FakeExecutor())
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        async with AsyncExitStack() as stack:
            for project, share in ((1, 4), (2, 2), (3, 1)):
                for _ in range(share):
                    await stack.enter_async_context(ports.connect(project, uuid4(), port))
                with pytest.raises(Unavailable, match="project"):
                    await stack.enter_async_context(ports.connect(project, uuid4(), port))
        async with ports.connect(3, uuid4(), port):
            pass


async def test_host_without_ipv6_has_no_server_there() -> None:
    class Executor(FakeExecutor):
        async def create_socket(self, environment: UUID, family: socket.AddressFamily) -> socket.socket:
            if family == socket.AF_INET6:
                raise EnvironmentSocketError("no_family", "the host lacks IPv6")
            return await super().create_socket(environment, family)

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(NothingListens):
            async with EnvironmentPorts(Executor()).connect(1, uuid4(), unused.getsockname()[1]):
                pass


async def test_environment_asks_for_one_socket_at_a_time() -> None:
    class Executor(FakeExecutor):
        now = most = 0

        async def create_socket(self, environment: UUID, family: socket.AddressFamily) -> socket.socket:
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0)
            self.now -= 1
            return await super().create_socket(environment, family)

    executor, environment = Executor(), uuid4()
    ports = EnvironmentPorts(executor)
    with socket.create_server(("127.0.0.1", 0)) as server:
        async with AsyncExitStack() as stack:
            opening = [ports.connect(1, environment, server.getsockname()[1]) for _ in range(4)]
            await asyncio.gather(*(stack.enter_async_context(each) for each in opening))
    assert executor.most == 1
