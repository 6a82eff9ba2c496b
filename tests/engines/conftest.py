"""One system for all tests of engines, and pools on it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
import pytest_asyncio

from arl_tangram import AsyncTangram
from support.engines import ENGINES, PoolRun
from support.machine import Machine, a_machine

StartPool = Callable[..., Awaitable[PoolRun]]


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Run a system that serves nodes. Its own CPU node takes no action."""
    flags = ("--listen", "127.0.0.1", "--driver", "simulated", "--cores", "1")
    with a_machine(tmp_path_factory.mktemp("engines"), *flags) as machine:
        with machine.client() as tangram:
            for node in tangram.nodes().items:
                tangram.change_node(node.name, cordoned=True)
        yield machine


@pytest_asyncio.fixture(loop_scope="session")
async def client(machine: Machine) -> AsyncIterator[AsyncTangram]:
    async with machine.async_client() as client:
        yield client


@pytest_asyncio.fixture(loop_scope="session", params=sorted(ENGINES))
async def start_pool(
    request: pytest.FixtureRequest, machine: Machine, client: AsyncTangram
) -> AsyncIterator[StartPool]:
    """Start pools with one controller each. At the end, their controllers and nodes are stopped."""
    pools: list[PoolRun] = []

    async def start(name: str, options: str) -> PoolRun:
        pool = PoolRun(machine, ENGINES[request.param](machine), client, name, options)
        pools.append(pool)
        pool.start_controller()
        return pool

    yield start
    for pool in pools:
        await pool.stop()
