"""Test the limits of connections to servers inside environments at a node."""

import socket
from contextlib import AsyncExitStack
from uuid import uuid4

import pytest

from arl_cpu.node import ports as node_ports
from arl_cpu.node.ports import EnvironmentPorts
from arl_wire.errors import Unavailable
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
