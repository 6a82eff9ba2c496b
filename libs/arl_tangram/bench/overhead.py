"""What scheduling an action costs: actions a second and CPU a piece, beside plain processes.

Five measurements, one after the other, the whole row again for each repeat: plain spawns of `true`, the same through
the API in batches and one by one, actions that do nothing on a simulated node, and how long it takes from sending an
action to its program's first statement on an idle system.
"""

import asyncio
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

from arl_core.states import Outcome
from arl_tangram.bench.cpu_time import own_cpu_s
from arl_tangram.bench.own_system import OwnSystem, own_system
from arl_tangram.client import AsyncTangram
from arl_tangram.options import exec_action
from arl_wire.actions import Action, SubmitAction

__all__ = ["Rate", "Sizes", "costed", "run_noops", "run_overhead"]

Samples = dict[str, list[float]]
TASK = "overhead"
STAMP = "import time\nprint(time.monotonic_ns())"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much of each."""

    repeats: int = 3
    seconds: float = 20.0
    """Of no-ops; the other rates take a quarter of it each."""
    starts: int = 100
    """Idle starts per repeat."""
    environments: int = 16
    clients: int = 32
    batch: int = 250
    batches: int = 4
    """Batches of no-ops on their way at once."""
    simulated_cores: int = 64


@dataclass(slots=True)
class Rate:
    """Actions that were done in some time, and what they cost."""

    done: int
    wall_s: float
    cpu_s: dict[str, float] = field(default_factory=dict)

    @property
    def per_s(self) -> float:
        return self.done / self.wall_s

    def cpu_ms(self, *names: str) -> float:
        """A piece; of all processes if none is named."""
        return 1000 * sum(seconds for name, seconds in self.cpu_s.items() if not names or name in names) / self.done


def run_overhead(sizes: Sizes, say: Callable[[str], None]) -> tuple[dict[str, float], dict[str, Any]]:
    """Figures and samples. Two systems are up all the while; only one of them works at a time."""
    with own_system() as real, own_system(driver="simulated", cores=sizes.simulated_cores) as simulated:
        rows = asyncio.run(_measure(real, simulated, sizes, say))
    return _figures(rows), {name: [_rounded(sample) for sample in samples] for name, samples in rows.items()}


async def _measure(
    real: OwnSystem, simulated: OwnSystem, sizes: Sizes, say: Callable[[str], None]
) -> dict[str, list[Any]]:
    rows: dict[str, list[Any]] = {name: [] for name in ("plain", "batch", "single", "noop", "start_ms")}
    async with real.client() as client, simulated.client() as noops:
        await _warm_up(client, noops, sizes)
        for repeat in range(sizes.repeats):
            say(f"repeat {repeat + 1} of {sizes.repeats}")
            rows["plain"].append(await asyncio.to_thread(_plain, sizes))
            rows["batch"].append(await costed(real, _batches(client, sizes)))
            rows["single"].append(await costed(real, _singles(client, sizes)))
            rows["noop"].append(await costed(simulated, run_noops(noops, sizes)))
            rows["start_ms"] += await _starts(client, sizes.starts)
    return rows


async def _warm_up(client: AsyncTangram, noops: AsyncTangram, sizes: Sizes) -> None:
    """Every environment exists, every connection is open."""
    for names in (_names("batch", sizes.environments), _names("single", sizes.clients), ["start"]):
        _all_ok(await client.wait(await client.submit_many([_true(name) for name in names])))
    _all_ok(await noops.wait(await noops.submit_many([_noop()] * sizes.batch)))


def _plain(sizes: Sizes) -> Rate:
    """Spawn and wait, from as many threads as there are environments."""
    ends_at = time.monotonic() + sizes.seconds / 4

    def spawn(_: int) -> int:
        done = 0
        while time.monotonic() < ends_at:
            subprocess.run(["/bin/true"], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            done += 1
        return done

    begun = time.monotonic()
    with ThreadPoolExecutor(sizes.environments) as threads:
        done = sum(threads.map(spawn, range(sizes.environments)))
    return Rate(done, time.monotonic() - begun)


async def _batches(client: AsyncTangram, sizes: Sizes) -> int:
    """`true` in the live environments, in batches; the next is on its way while one runs."""
    names = _names("batch", sizes.environments)
    actions = [_true(names[number % len(names)]) for number in range(sizes.batch)]
    return await _pumped(client, actions, workers=2, seconds=sizes.seconds / 4)


async def run_noops(client: AsyncTangram, sizes: Sizes) -> int:
    """Actions that do nothing, in batches, for the time that `sizes` says; how many."""
    return await _pumped(client, [_noop()] * sizes.batch, workers=sizes.batches, seconds=sizes.seconds)


async def _pumped(client: AsyncTangram, actions: Sequence[SubmitAction], *, workers: int, seconds: float) -> int:
    """How many were submitted and fetched; each worker has one batch on its way."""
    ends_at = time.monotonic() + seconds

    async def pump() -> int:
        done = 0
        while time.monotonic() < ends_at:
            done += _all_ok(await client.wait(await client.submit_many(actions)))
        return done

    return sum(await asyncio.gather(*(pump() for _ in range(workers))))


async def _singles(client: AsyncTangram, sizes: Sizes) -> int:
    """One client per environment; each sends the next `POST /v1/actions?wait` when it has its answer."""
    ends_at = time.monotonic() + sizes.seconds / 4

    async def pump(name: str) -> int:
        done = 0
        while time.monotonic() < ends_at:
            done += _all_ok([await client.run(_true(name))])
        return done

    return sum(await asyncio.gather(*map(pump, _names("single", sizes.clients))))


async def _starts(client: AsyncTangram, count: int) -> list[float]:
    """Milliseconds from the client's call to the program's first statement; the clock is the machine's one."""
    action = exec_action(task=TASK, trajectory="start", source=STAMP, memory_mib=64)
    found = []
    for _ in range(count):
        sent = time.monotonic_ns()
        settled = await client.run(action)
        _all_ok([settled])
        assert settled.result is not None
        found.append((int(settled.result.stdout.text) - sent) / 1e6)
    return found


async def costed(system: OwnSystem, work: Awaitable[int]) -> Rate:
    """What some work took, and what every process of the system used for it."""
    before, own, begun = system.cpu_s(), own_cpu_s(), time.monotonic()
    done = await work
    wall_s = time.monotonic() - begun
    after = system.cpu_s()
    used = {name: after[name] - before.get(name, 0.0) for name in after} | {"client": own_cpu_s() - own}
    return Rate(done, wall_s, used)


def _all_ok(actions: Sequence[Action]) -> int:
    bad = next((action for action in actions if action.outcome is not Outcome.OK), None)
    if bad is not None:
        raise RuntimeError(f"action {bad.id} settled as {bad.outcome} ({bad.reason}); nothing is measured")
    return len(actions)


def _names(kind: str, count: int) -> list[str]:
    return [f"{kind}-{number}" for number in range(count)]


def _true(trajectory: str) -> SubmitAction:
    return exec_action(task=TASK, trajectory=trajectory, argv=["true"], memory_mib=64, cpu=0.1)


def _noop() -> SubmitAction:
    return exec_action(task=TASK, argv=["true"], memory_mib=8, disk_mib=1, cpu=0.1)


def _figures(rows: dict[str, list[Any]]) -> dict[str, float]:
    def middle(name: str, value: Callable[[Rate], float]) -> float:
        return round(median(value(sample) for sample in rows[name]), 3)

    starts = quantiles(rows["start_ms"], n=100)
    return {
        "plain_exec_per_s": middle("plain", lambda rate: rate.per_s),
        "tangram_exec_per_s": middle("batch", lambda rate: rate.per_s),
        "tangram_exec_cpu_ms": middle("batch", lambda rate: rate.cpu_ms()),
        "tangram_exec_single_per_s": middle("single", lambda rate: rate.per_s),
        "tangram_exec_single_cpu_ms": middle("single", lambda rate: rate.cpu_ms()),
        "client_cpu_ms": middle("single", lambda rate: rate.cpu_ms("client")),
        "tangram_noop_per_s": middle("noop", lambda rate: rate.per_s),
        "cpu_ms_per_noop": middle("noop", lambda rate: rate.cpu_ms()),
        "client_cpu_ms_per_noop": middle("noop", lambda rate: rate.cpu_ms("client")),
        "idle_submit_to_start_p50_ms": round(starts[49], 3),
        "idle_submit_to_start_p99_ms": round(starts[98], 3),
    }


def _rounded(sample: Rate | float) -> Any:
    if not isinstance(sample, Rate):
        return round(sample, 3)
    cpu = {name: round(1000 * seconds / sample.done, 4) for name, seconds in sample.cpu_s.items()}
    return {"done": sample.done, "wall_s": round(sample.wall_s, 3), "cpu_ms_each": cpu}
