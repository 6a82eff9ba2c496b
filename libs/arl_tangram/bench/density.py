"""What very many resting environments cost one node, and what they cost an exec beside them."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from arl_core.states import Outcome
from arl_tangram.bench.cpu_time import descendants
from arl_tangram.bench.memory import proportional_mib
from arl_tangram.bench.own_system import OwnSystem, own_system
from arl_tangram.client import AsyncTangram
from arl_tangram.leftovers import Leftovers
from arl_tangram.options import exec_action
from arl_wire.actions import SubmitAction
from arl_wire.errors import TangramError

__all__ = ["Sizes", "run_density"]

TASK = "density"
BATCH = 100
ENDS_AT_ONCE = 16
SETTLE_S = 3.0
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much of each."""

    environments: int = 2000
    memory_mib: int = 8
    samples: int = 300
    idle_s: float = 20.0


def run_density(sizes: Sizes, say: Callable[[str], None]) -> tuple[dict[str, float], dict[str, Any]]:
    """Figures and samples. The node is empty, then full, then empty again."""
    with own_system() as system:
        return asyncio.run(_measure(system, sizes, say))


async def _measure(
    system: OwnSystem, sizes: Sizes, say: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, Any]]:
    async with system.client() as client:
        say("an empty node")
        await _execs(client, sizes.samples // 4)  # every connection is open, every path warm
        empty = await _execs(client, sizes.samples)
        charged, by = _charged_mib(system)
        say(f"{sizes.environments} environments")
        begun = time.monotonic()
        await _create(client, sizes)
        created_s = time.monotonic() - begun
        full = await _execs(client, sizes.samples)
        charged = _charged_mib(system)[0] - charged
        say(f"{sizes.idle_s:g} s of rest")
        idle = await _idle_cores(system, sizes.idle_s)
        say("an empty node again")
        await _end(client, sizes)
        again = await _execs(client, sizes.samples)
    figures = {
        "mib_per_environment": round(charged / sizes.environments, 3),
        "idle_cores": round(sum(idle.values()), 4),
        "exec_p50_ms_empty": round(median(empty + again), 3),
        "exec_p50_ms_full": round(median(full), 3),
        "exec_p50_ratio": round(median(full) / median(empty + again), 3),
        "create_per_s": round(sizes.environments / created_s, 1),
    }
    return figures, {"empty_ms": empty, "full_ms": full, "empty_again_ms": again, "idle_cores": idle, "charged_by": by}


async def _create(client: AsyncTangram, sizes: Sizes) -> None:
    """By a first exec in each."""
    for first in range(0, sizes.environments, BATCH):
        numbers = range(first, min(first + BATCH, sizes.environments))
        actions = [_true(f"resting-{number}", sizes.memory_mib) for number in numbers]
        for settled in await client.wait(await client.submit_many(actions)):
            if settled.outcome is not Outcome.OK:
                raise TangramError(f"action {settled.id} settled as {settled.outcome} ({settled.message})")


async def _end(client: AsyncTangram, sizes: Sizes) -> None:
    left = iter(range(sizes.environments))

    async def lane() -> None:
        for number in left:
            await client.end_trajectory(TASK, f"resting-{number}")

    await asyncio.gather(*(lane() for _ in range(ENDS_AT_ONCE)))
    # The probe's stays.
    while any(node.environments > 1 for node in (await client.nodes()).items):  # noqa: ASYNC110
        await asyncio.sleep(SETTLE_S / 10)


async def _execs(client: AsyncTangram, count: int) -> list[float]:
    """Milliseconds of one after the other, in one environment that stays."""
    took = []
    for _ in range(count):
        begun = time.monotonic()
        settled = await client.run(_true("probe", 64))
        took.append(round(1000 * (time.monotonic() - begun), 3))
        if settled.outcome is not Outcome.OK:
            raise TangramError(f"action {settled.id} settled as {settled.outcome} ({settled.message})")
    return took


async def _idle_cores(system: OwnSystem, seconds: float) -> dict[str, float]:
    """Of each process with all that is below it: the launcher's is all environments'."""
    await asyncio.sleep(SETTLE_S)
    before, begun = system.cpu_s(), time.monotonic()
    await asyncio.sleep(seconds)
    after, wall_s = system.cpu_s(), time.monotonic() - begun
    return {name: round((after[name] - before[name]) / wall_s, 5) for name in after}


def _charged_mib(system: OwnSystem) -> tuple[float, str]:
    """Of all environments: what the kernel charges their cgroups, or their share of memory where there is none."""
    for tree in Leftovers(system.directory).trees():
        for name in ("memory.usage_in_bytes", "memory.current"):
            if (tree / name).exists():
                return sum(int(path.read_text()) for path in tree.glob(f"*/{name}")) / MIB, name
    pids = descendants(system.processes()["cpu-launcher"])
    return sum(map(proportional_mib, pids)), "Pss"


def _true(trajectory: str, memory_mib: int) -> SubmitAction:
    argv = ["true"]
    return exec_action(task=TASK, trajectory=trajectory, argv=argv, memory_mib=memory_mib, disk_mib=1, cpu=0.2)
