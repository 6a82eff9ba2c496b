"""One system for all tests of engines, and pools on it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
import pytest_asyncio

from arl_tangram import AsyncTangram
from support.engines import ENGINES, EngineFixture, LocalEngineFixture, PoolRun, RayEngineFixture
from support.machine import Machine, a_machine
from support.ray_cluster import RAY_PYTHON, a_ray_cluster

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


@pytest.fixture(scope="session")
def ray_engine(machine: Machine) -> Iterator[RayEngineFixture]:
    """Run a Ray cluster of a head and three Ray nodes."""
    if not RAY_PYTHON.exists():
        pytest.skip("Ray is not installed; `make test-engines` installs it into .ray")
    with a_ray_cluster(3) as cluster:
        yield RayEngineFixture(machine, cluster)


@pytest.fixture(scope="session", params=ENGINES)
def engine(request: pytest.FixtureRequest, machine: Machine) -> EngineFixture:
    if request.param == "ray":
        found: EngineFixture = request.getfixturevalue("ray_engine")
        return found
    return LocalEngineFixture(machine)


@pytest_asyncio.fixture(loop_scope="session")
async def start_pool(engine: EngineFixture, machine: Machine, client: AsyncTangram) -> AsyncIterator[StartPool]:
    """Start pools with one controller each. At the end, their controllers and nodes are stopped."""
    pools: list[PoolRun] = []

    async def start(name: str, options: str) -> PoolRun:
        pool = PoolRun(machine, engine, client, name, options)
        pools.append(pool)
        pool.start_controller()
        return pool

    yield start
    for pool in pools:
        await pool.stop()
