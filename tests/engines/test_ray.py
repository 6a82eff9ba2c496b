"""Test events of a Ray cluster: a lost Ray node, a restarted actor, too few nodes."""

import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from support.engines import PoolRun, RayEngineFixture
from support.machine import Machine

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("engine", ["ray"], indirect=True)]

StartPool = Callable[..., Awaitable[PoolRun]]


async def test_too_small_cluster_is_in_the_status_of_the_pool(
    start_pool: StartPool, ray_engine: RayEngineFixture
) -> None:
    pool = await start_pool("large", "min=4,max=4,cores=1")

    async def is_reported() -> bool:
        state = await pool.state()
        return state is not None and state.ready == 3 and "1 more are needed" in state.reason

    await pool.until(is_reported)
    ray_engine.cluster.start_ray_node()
    await pool.until_ready(4)
    state = await pool.state()
    assert state is not None
    assert "more are needed" not in state.reason


async def test_killed_actor_restarts_its_node_under_its_name(
    start_pool: StartPool, ray_engine: RayEngineFixture
) -> None:
    pool = await start_pool("actor", "min=1,max=1,cores=1")
    (name,) = await pool.until_ready(1)
    (before,) = pool.engine.process_ids("actor").values()
    actor = int(Path(f"/proc/{before}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(actor, signal.SIGKILL)

    async def is_back() -> bool:
        found = pool.engine.process_ids("actor")
        return bool(found) and found != {name: before}

    await pool.until(is_back)
    assert await pool.until_ready(1) == {name}
    await pool.run_on_each({name})


async def test_token_is_not_in_the_logs_of_ray(start_pool: StartPool, ray_engine: RayEngineFixture) -> None:
    pool = await start_pool("quiet", "min=1,max=1,cores=1")
    await pool.until_ready(1)
    (pid,) = pool.engine.process_ids("quiet").values()
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    (token,) = [each.partition(b"=")[2] for each in variables if each.startswith(b"TANGRAM_JOIN_TOKEN=")]
    logs = [path for path in (ray_engine.cluster.directory / "ray").rglob("logs/**/*") if path.is_file()]
    assert logs
    assert not [path for path in logs if token in path.read_bytes()]


async def test_killed_ray_node_is_replaced_on_another(
    start_pool: StartPool, ray_engine: RayEngineFixture, machine: Machine
) -> None:
    pool = await start_pool("machines", "min=2,max=2,cores=1")
    names = await pool.until_ready(2)
    victim = min(names)
    lost = ray_engine.ray_node_of(victim)
    ray_engine.cluster.kill_ray_node(lost)

    async def is_replaced() -> bool:
        return victim not in {node.name for node in await pool.nodes()}

    await pool.until(is_replaced)
    replaced = await pool.until_ready(2)
    assert len(replaced & names) == 1
    assert lost not in {ray_engine.ray_node_of(name) for name in replaced}
    await pool.run_on_each(replaced)
    done = machine.cli("check", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
