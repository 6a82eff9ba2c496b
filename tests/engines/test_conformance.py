"""The conformance suite that every engine passes unchanged: bring-up, losses, scaling and competing controllers."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from support.conditions import eventually
from support.engines import PoolRun
from support.machine import Machine
from support.sandbox import sandboxes

pytestmark = pytest.mark.slow

StartPool = Callable[..., Awaitable[PoolRun]]
SCALING = "min=1,max=3,cores=2,target=3,cooldown=3"


async def heartbeat_of(pool: PoolRun, name: str) -> str | None:
    """Return the epoch of a live node; None if it is not alive."""
    return next((str(node.epoch) for node in await pool.nodes() if node.name == name and node.alive), None)


def text_of(path: Path) -> str:
    """Return the content of a file of /proc; nothing if its process has ended."""
    try:
        return path.read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def assert_consistent(machine: Machine) -> None:
    done = machine.cli("check", check=False)
    assert done.returncode == 0, done.stdout + done.stderr


async def test_three_nodes_start_and_run_actions(start_pool: StartPool, machine: Machine) -> None:
    pool = await start_pool("three", "min=3,max=3,cores=2")
    names = await pool.until_ready(3)
    assert set(pool.engine.process_ids("three")) == names
    await pool.run_on_each(names)
    shown = machine.cli("pools", "list").stdout
    assert "three" in shown
    assert "active" in shown
    assert_consistent(machine)


@pytest.mark.parametrize("driver", sandboxes())
async def test_node_with_a_sandbox_runs_programs(start_pool: StartPool, driver: str) -> None:
    pool = await start_pool("real", f"min=1,max=1,cores=1,driver={driver}")
    names = await pool.until_ready(1)
    async with asyncio.timeout(60):
        action = await pool.client.run(task="real", argv=["sh", "-c", "echo $((6 * 7))"])
    assert (action.outcome, action.stdout, {action.node}) == ("ok", "42\n", names)
    assert [node.driver for node in await pool.nodes()] == [driver]


async def test_credentials_are_not_in_arguments(start_pool: StartPool) -> None:
    pool = await start_pool("secret", "min=1,max=1,cores=1")
    await pool.until_ready(1)
    (pid,) = pool.engine.process_ids("secret").values()
    variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
    (token,) = [each.partition("=")[2] for each in variables if each.startswith("TANGRAM_JOIN_TOKEN=")]
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if token in text_of(path)]
    assert token not in pool.log()


async def test_killed_manager_comes_back(start_pool: StartPool) -> None:
    pool = await start_pool("manager", "min=2,max=2,cores=2")
    names = await pool.until_ready(2)
    victim = min(names)
    processes, before = pool.engine.process_ids("manager"), await heartbeat_of(pool, victim)
    pool.engine.kill_manager(victim)

    async def is_back() -> bool:
        return await heartbeat_of(pool, victim) not in (None, before)

    await pool.until(is_back)
    assert await pool.until_ready(2) == names
    assert pool.engine.process_ids("manager") == processes
    await pool.run_on_each(names)


async def test_lost_node_is_replaced(start_pool: StartPool, machine: Machine) -> None:
    pool = await start_pool("lost", "min=3,max=3,cores=2")
    victim = min(await pool.until_ready(3))
    before = await heartbeat_of(pool, victim)
    pool.engine.lose_node(victim)

    async def is_gone() -> bool:
        return await heartbeat_of(pool, victim) != before

    await pool.until(is_gone)
    await pool.run_on_each(await pool.until_ready(3))
    assert_consistent(machine)


async def test_pool_scales_under_load_and_loses_nothing(start_pool: StartPool, machine: Machine) -> None:
    """An environment lives on one node throughout; actions arrive while the pool grows and while it shrinks."""
    pool = await start_pool("scaled", SCALING)
    await pool.until_ready(1)
    keeps = {"trajectory": "lives", "scope": "trajectory"}
    home = (await pool.run(0, **keeps)).node
    burst = [asyncio.create_task(pool.run(1.0, cpu=1)) for _ in range(60)]
    names = await pool.until_ready(3)
    await asyncio.gather(*burst)
    assert {action.result().node for action in burst} == names

    shrinking = asyncio.create_task(pool.until_ready(1))
    while not shrinking.done():
        action = await pool.run(0.2, **keeps)
        assert action.node == home
        await pool.run(0.1)
    assert await shrinking == {home}
    assert "scale_down" in pool.log()
    await pool.client.end_trajectory(pool.name, "lives")
    assert_consistent(machine)


async def test_restarted_controller_finds_its_nodes(start_pool: StartPool) -> None:
    pool = await start_pool("restarted", "min=2,max=2,cores=2")
    names = await pool.until_ready(2)
    before = pool.engine.process_ids("restarted")
    first = pool.controllers[0]
    first.kill()
    first.wait()
    assert pool.engine.process_ids("restarted") == before
    pool.start_controller()
    await eventually(lambda: "pool restarted is controlled" in pool.log(1), timeout_s=30)
    assert await pool.until_ready(2) == names
    assert pool.engine.process_ids("restarted") == before


async def test_controller_killed_while_it_starts_nodes_leaves_no_duplicates(start_pool: StartPool) -> None:
    pool = await start_pool("midway", "min=3,max=3,cores=1")
    await eventually(lambda: bool(pool.engine.process_ids("midway")), timeout_s=30)
    pool.controllers[0].kill()
    pool.controllers[0].wait()
    pool.start_controller()
    names = await pool.until_ready(3)
    assert set(pool.engine.process_ids("midway")) == names


async def test_one_of_two_controllers_acts(start_pool: StartPool) -> None:
    pool = await start_pool("rivals", "min=2,max=2,cores=1")
    pool.start_controller()
    names = await pool.until_ready(2)
    before = pool.engine.process_ids("rivals")
    await eventually(lambda: any("waiting" in pool.log(number) for number in (0, 1)), timeout_s=30)
    active, standby = (0, 1) if "waiting" in pool.log(1) else (1, 0)
    assert ": started, " not in pool.log(standby)

    pool.controllers[active].send_signal(signal.SIGKILL)
    pool.controllers[active].wait()
    pool.engine.lose_node(min(names))
    await eventually(lambda: "is controlled by" in pool.log(standby), timeout_s=30)
    await pool.until_ready(2)
    after = pool.engine.process_ids("rivals")
    assert len(after) == 2
    assert after.items() & before.items(), "the other node was not restarted"


async def test_frozen_controller_does_nothing_after_its_lease(start_pool: StartPool) -> None:
    pool = await start_pool("frozen", "min=1,max=1,cores=1")
    await pool.until_ready(1)
    first = pool.controllers[0]
    first.send_signal(signal.SIGSTOP)
    pool.start_controller()
    await eventually(lambda: "pool frozen is controlled" in pool.log(1), timeout_s=30)
    first.send_signal(signal.SIGCONT)
    await eventually(lambda: "waiting" in pool.log(0), timeout_s=30)
    assert await pool.until_ready(1) == set(pool.engine.process_ids("frozen"))
