"""One launcher of every driver for each module of attacks, as whichever user runs the tests."""

from collections.abc import AsyncIterator

import pytest

from arl_cpu.contract.executor import EnvironmentSpec
from support.conditions import eventually
from support.sandbox import Bench, a_bench, an_environment, cgroups_of, living_descendants, sandboxes


@pytest.fixture(scope="module", params=sandboxes(slow=("landlock",), both_agents=True))
async def sandbox(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    async with a_bench(tmp_path_factory.mktemp("sandbox"), request.param) as bench:
        yield bench


@pytest.fixture
async def trajectory(sandbox: Bench) -> AsyncIterator[EnvironmentSpec]:
    """A persistent environment, destroyed after the test."""
    environment = an_environment()
    yield environment
    await sandbox.destroy(environment.id)


@pytest.fixture(autouse=True)
async def nothing_is_left(sandbox: Bench) -> AsyncIterator[None]:
    """After every attack the launcher has one child, the zygote, and no cgroup but its own."""
    yield
    launcher = sandbox.launcher
    assert launcher is not None
    await eventually(lambda: len(living_descendants(launcher.pid)) == 1 and cgroups_of(launcher) == [])
