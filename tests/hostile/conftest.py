"""Provide one launcher per driver for each module of attacks."""

from collections.abc import AsyncIterator

import pytest

from arl_cpu.contract.executor import EnvironmentSpec
from support.conditions import eventually
from support.sandbox import ROOT_INSIDE, Bench, a_bench, an_environment, cgroups_of, living_descendants, sandboxes


@pytest.fixture(scope="module", params=[*sandboxes(slow=("landlock",), both_agents=True), *ROOT_INSIDE])
async def sandbox(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    async with a_bench(tmp_path_factory.mktemp("sandbox"), request.param) as bench:
        yield bench


@pytest.fixture
async def trajectory(sandbox: Bench) -> AsyncIterator[EnvironmentSpec]:
    """Provide a persistent environment and destroy it after the test."""
    environment = an_environment()
    yield environment
    await sandbox.destroy(environment.id)


@pytest.fixture(autouse=True)
async def nothing_is_left(sandbox: Bench) -> AsyncIterator[None]:
    """Check after every attack that the launcher has only its zygote and its own cgroup."""
    yield
    launcher = sandbox.launcher
    assert launcher is not None
    await eventually(lambda: len(living_descendants(launcher.pid)) == 1 and cgroups_of(launcher) == [])
