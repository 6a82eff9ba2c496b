"""One launcher with the namespaces driver for each module of attacks, as whichever user runs the tests."""

from collections.abc import AsyncIterator

import pytest

from arl_cpu.executor import EnvironmentSpec
from support.sandbox import Bench, a_bench, an_environment, cgroups_of, living_descendants


@pytest.fixture(scope="module")
async def sandbox(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    async with a_bench(tmp_path_factory.mktemp("sandbox"), "namespaces") as bench:
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
    assert sandbox.launcher is not None
    assert len(living_descendants(sandbox.launcher.pid)) == 1
    assert cgroups_of(sandbox.launcher) == []
