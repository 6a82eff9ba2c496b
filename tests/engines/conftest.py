"""One system for all tests of engines, and pools on it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
import pytest_asyncio

from arl_tangram import AsyncTangram
from support.engines import (
    ENGINES,
    EngineFixture,
    LocalEngineFixture,
    PoolRun,
    RayEngineFixture,
    SlurmEngineFixture,
)
from support.machine import Machine, a_machine
from support.ray_cluster import RAY_PYTHON, a_ray_cluster
from support.slurm_cluster import a_slurm_cluster, missing_programs

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


@pytest_asyncio.fixture(loop_scope="session", scope="session")
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


@pytest.fixture(scope="session")
def slurm_engine(machine: Machine) -> Iterator[SlurmEngineFixture]:
    """Run a Slurm cluster of a controller and three slurmd."""
    if missing := missing_programs():
        pytest.skip(f"Slurm is not installed ({missing[0]}): apt-get install slurm-wlm munge")
    with a_slurm_cluster(3) as cluster:
        yield SlurmEngineFixture(machine, cluster)


@pytest.fixture(scope="session", params=ENGINES)
def engine(request: pytest.FixtureRequest, machine: Machine) -> EngineFixture:
    if request.param != "local":
        found: EngineFixture = request.getfixturevalue(f"{request.param}_engine")
        return found
    return LocalEngineFixture(machine)


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def ending_pools(engine: EngineFixture, client: AsyncTangram) -> AsyncIterator[dict[str, asyncio.Task[None]]]:
    """Collect pools of earlier tests, by name, that may still wait for the end of their nodes' leases."""
    ending: dict[str, asyncio.Task[None]] = {}
    yield ending
    await asyncio.gather(*ending.values())


@pytest_asyncio.fixture(loop_scope="session")
async def start_pool(
    engine: EngineFixture, machine: Machine, client: AsyncTangram, ending_pools: dict[str, asyncio.Task[None]]
) -> AsyncIterator[StartPool]:
    """Start pools with one controller each. At the end, their controllers and nodes are stopped."""
    pools: list[PoolRun] = []

    async def start(name: str, options: str, *flags: str) -> PoolRun:
        if name in ending_pools:
            await ending_pools.pop(name)
        pool = PoolRun(machine, engine, client, name, options)
        pools.append(pool)
        pool.start_controller(*flags)
        return pool

    yield start
    for pool in pools:
        stopped = asyncio.create_task(pool.stop())
        ended = asyncio.create_task(pool.has_ended.wait())
        await asyncio.wait((stopped, ended), return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if stopped.done():
            stopped.result()
        ending_pools[pool.name] = stopped
