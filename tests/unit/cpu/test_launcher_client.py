"""Connections to a launcher that is busy."""

import asyncio
import socket
from pathlib import Path
from uuid import uuid4

from arl_core.domain.model import Fence
from arl_cpu.contract.launcher_client import LauncherClient


async def test_refused_connection_to_busy_launcher_is_retried(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(0)
        listener.setblocking(False)
        client = LauncherClient(path)
        beginning = [
            asyncio.create_task(client.start_file_operation(Fence(uuid4(), 1), uuid4(), {"op": "list"}))
            for _ in range(4)
        ]
        await asyncio.wait(beginning, return_when=asyncio.FIRST_COMPLETED)
        assert not all(each.done() for each in beginning)
        for _ in range(4):
            connected, _ = await asyncio.get_running_loop().sock_accept(listener)
            with connected:
                assert await asyncio.get_running_loop().sock_recv(connected, 4)
        await asyncio.gather(*beginning)
