"""Test sockets in the network namespaces of environments, with every driver."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from arl_cpu.contract.environment_access import EnvironmentSocketError
from support.sandbox import Bench, a_bench, a_command, a_program, an_environment, sandboxes

PORT = 8123
SERVER = """
import socket, sys
listener = socket.create_server((sys.stdin.readline().strip(), 8123), family=int(sys.stdin.readline()))
open("ready", "w").close()
while True:
    client, address = listener.accept()
    client.sendall(client.recv(100).upper())
    client.close()
"""
WAIT = ("sh", "-c", "until [ -e ready ]; do sleep 0.01; done")


@pytest.fixture(scope="module", params=["namespaces"])
async def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    async with a_bench(tmp_path_factory.mktemp("sockets"), request.param) as bench:
        yield bench


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")], ids=["v4", "v6"]
)
async def test_socket_reaches_a_server_inside_also_while_it_is_frozen(
    bench: Bench, family: socket.AddressFamily, address: str
) -> None:
    environment = an_environment()
    start = a_command(
        "sh", "-c", "cat > in; python3 server.py < in & while [ ! -e ready ]; do sleep 0.01; done",
        environment=environment, files={"server.py": SERVER.encode()}, stdin=f"{address}\n{int(family)}\n".encode(),
    )  # fmt: skip
    assert (await bench.run(start)).leftover_processes == 1
    loop = asyncio.get_running_loop()
    with await bench.executor.create_socket(environment.id, family) as connection:
        await loop.sock_connect(connection, (address, PORT))
        await loop.sock_sendall(connection, b"hello")
        with pytest.raises(BlockingIOError):  # the server is frozen
            connection.recv(100)
        thawed = await bench.begin(a_command("sleep", "30", environment=environment))
        assert await loop.sock_recv(connection, 100) == b"HELLO"
        await bench.destroy(environment.id)
        assert (await thawed).outcome == "cancelled"


async def test_port_without_a_server_is_refused(bench: Bench) -> None:
    environment = an_environment()
    await bench.run(a_command("true", environment=environment))
    connection = await bench.executor.create_socket(environment.id, socket.AF_INET)
    with connection, pytest.raises(ConnectionRefusedError):
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", PORT))
    await bench.destroy(environment.id)


async def test_server_of_the_host_is_not_reached_and_the_launcher_stays_outside(bench: Bench) -> None:
    environment, other = an_environment(), an_environment()
    for each in (environment, other):
        await bench.run(a_command("true", environment=each))
    assert bench.launcher is not None
    before = os.readlink(f"/proc/{bench.launcher.pid}/ns/net")
    connection = await bench.executor.create_socket(environment.id, socket.AF_INET)
    with socket.create_server(("127.0.0.1", 0)) as host, connection, pytest.raises(ConnectionRefusedError):
        await asyncio.get_running_loop().sock_connect(connection, host.getsockname())
    assert os.readlink(f"/proc/{bench.launcher.pid}/ns/net") == before == os.readlink("/proc/self/ns/net")
    await bench.destroy(environment.id, other.id)


async def test_end_of_the_environment_ends_its_connections(bench: Bench) -> None:
    environment = an_environment()
    source = "import socket\n"
    source += "server = socket.create_server(('127.0.0.1', 8123))\nprint(1, flush=True)\nserver.accept()[0].recv(9)"
    serving = a_program(source, environment=environment)
    ended = await bench.begin(serving)
    await bench.executor.poll_output(serving.fence, stdout=0, stderr=0)
    loop = asyncio.get_running_loop()
    with await bench.executor.create_socket(environment.id, socket.AF_INET) as connection:
        await loop.sock_connect(connection, ("127.0.0.1", PORT))
        await bench.destroy(environment.id)
        assert (await ended).outcome == "cancelled"
        with suppress(ConnectionResetError):  # if the server had not accepted it
            assert await asyncio.wait_for(loop.sock_recv(connection, 1), 5) == b""


async def test_unknown_environment_has_no_sockets(bench: Bench) -> None:
    with pytest.raises(EnvironmentSocketError) as error:
        await bench.executor.create_socket(uuid4(), socket.AF_INET)
    assert error.value.code == "lost"


@pytest.mark.parametrize("driver", ["unsafe-local", *(each for each in sandboxes() if each.values != ("namespaces",))])
async def test_driver_without_network_namespaces_refuses(tmp_path: Path, driver: str) -> None:
    async with a_bench(tmp_path, driver) as bench:
        environment = an_environment()
        await bench.run(a_command("true", environment=environment))
        with pytest.raises(EnvironmentSocketError) as error:
            await bench.executor.create_socket(environment.id, socket.AF_INET)
        assert error.value.code == "not_enforced"
