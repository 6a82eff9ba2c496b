"""Test that memory and files do not grow over many execs while agents and the manager are killed."""

import asyncio
import os
import random
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from arl_tangram import Action, ActionOutcome, AsyncTangram, exec_action
from arl_tangram.cli.system.host_resources import HostResourceScanner
from support.conditions import eventually, is_running
from support.machine import Machine, a_machine

EXECS = int(os.environ.get("TANGRAM_TEST_EXECS", "3000"))
ENVIRONMENTS = max(50, EXECS // 100)
MANAGER_EVERY = 5
"""One of this many kills hits the manager; the others hit an agent."""
KILLS = EXECS // 100
GROWTH = 1.1
"""Allowed memory growth over the second half; the number of remembered fences is bounded."""


class Churn:
    """A set of trajectories. If an environment is lost, its trajectory ends and gets a new name."""

    def __init__(self, client: AsyncTangram) -> None:
        self._client = client
        self._lives = dict.fromkeys(range(ENVIRONMENTS), 0)
        self.outcomes: Counter[tuple[ActionOutcome | None, str | None]] = Counter()

    async def turn(self) -> None:
        """Run one exec in each environment."""
        names = {number: f"e{number}-{life}" for number, life in self._lives.items()}
        actions = [
            exec_action(task="churn", trajectory=name, argv=["true"], memory_mib=8, disk_mib=1, cpu=0.1)
            for name in names.values()
        ]
        settled = await self._client.wait(await self._client.submit_many(actions))
        for number, action in zip(names, settled, strict=True):
            self.outcomes[action.outcome, action.reason] += 1
            if _lost(action):
                await self._client.end_trajectory("churn", names[number])
                self._lives[number] += 1

    async def end(self) -> None:
        for number, life in self._lives.items():
            await self._client.end_trajectory("churn", f"e{number}-{life}")


def _lost(action: Action) -> bool:
    return action.outcome is ActionOutcome.INFRA_ERROR


def launcher_of(machine: Machine) -> int:
    return machine.pid_of("cpu-launcher")


def agents(launcher: int) -> list[int]:
    """Return the launcher's children without the oldest one, which creates the others."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return [int(pid) for pid in children[1:]]


def files_of(launcher: int) -> int:
    """Return the number of open files without agent channels, whose number varies."""
    return len(os.listdir(f"/proc/{launcher}/fd")) - len(agents(launcher))


def resident_kib(pid: int) -> int:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1])


async def kill_now_and_then(machine: Machine, launcher: int, random_: random.Random, *, pause_s: float) -> None:
    for number in range(KILLS):
        await asyncio.sleep(random_.uniform(0, 2 * pause_s))
        if number % MANAGER_EVERY == 0:
            victim = machine.ready_pid_of("cpu")
        else:
            victim = random_.choice(agents(launcher) or [None])
        if victim is not None:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)


@pytest.mark.slow
async def test_memory_and_files_stay_bounded_over_many_execs_and_kills(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}, {EXECS} execs over {ENVIRONMENTS} environments")
    with a_machine(tmp_path / "state") as machine:
        launcher = launcher_of(machine)
        async with machine.async_client() as client:
            churn = Churn(client)
            await churn.turn()
            await churn.end()
            await until_empty(client)
            files = files_of(launcher)
            killing = asyncio.create_task(
                kill_now_and_then(machine, launcher, random.Random(seed), pause_s=EXECS / 200 / KILLS)
            )
            for _ in range(EXECS // ENVIRONMENTS // 2):
                await churn.turn()
            memory = resident_kib(launcher)
            for _ in range(EXECS // ENVIRONMENTS // 2):
                await churn.turn()
            await killing
            assert resident_kib(launcher) <= memory * GROWTH
            await churn.turn()
            manager = machine.pid_of("cpu")
            before = resident_kib(manager)
            for _ in range(3):
                await churn.turn()
            assert machine.pid_of("cpu") == manager
            assert resident_kib(manager) <= before * GROWTH
            await churn.end()
            await until_empty(client)
        print(dict(churn.outcomes))
        assert {outcome for outcome, _ in churn.outcomes} <= {ActionOutcome.OK, ActionOutcome.INFRA_ERROR}
        assert churn.outcomes[ActionOutcome.OK, None] >= EXECS * 0.8
        assert launcher_of(machine) == launcher
        await eventually(lambda: files_of(launcher) <= files)
        assert machine.cli("check", check=False).returncode == 0
        pids = machine.pids() | set(agents(launcher))
    assert not [pid for pid in pids if is_running(pid)]
    assert not list(HostResourceScanner(machine.directory).findings())


async def until_empty(client: AsyncTangram) -> None:
    async with asyncio.timeout(60):
        while any(node.running or node.environments for node in (await client.nodes()).items):
            await asyncio.sleep(0.1)
