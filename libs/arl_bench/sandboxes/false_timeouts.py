"""A benchmark of false timeouts: 64 and 256 programs of one CPU-second with a 10 s limit, submitted at once.

A server that starts all of them at once lets all of them fail on two cores: each gets 1/32 of a core. Here the limit
counts from the start of execution. With exclusive cores no more programs run concurrently than there are cores; with
shared ones, the time in which a program waits for a core does not count.
"""

import asyncio
import os
import resource
import subprocess
import sys
import time
from statistics import median
from typing import Any

from arl_tangram.async_client import AsyncTangram
from arl_tangram.options import exec_action
from arl_wire.actions.action import Action, SubmitActionRequest

__all__ = ["CLIENTS", "CPU_S", "MANY_CLIENTS", "TIMEOUT_S", "run_false_timeouts", "run_programs_at_once"]

CLIENTS, MANY_CLIENTS = 64, 256
TIMEOUT_S = 10.0
CPU_S = 1.0
PROBE_INTERVAL_S = 0.5

PROGRAM = """
import time
end = time.process_time() + {cpu_s}
while time.process_time() < end:
    for _ in range(10_000):
        pass
"""


async def run_false_timeouts(client: AsyncTangram, *, cores: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Return figures and samples. `cores` is the number of cores that the node offers to actions."""
    figures: dict[str, float] = {}
    samples: dict[str, Any] = {}
    await client.run(_probe_action())
    for prefix, clients, exclusive in (("", CLIENTS, True), ("shared_", CLIENTS, False), ("", MANY_CLIENTS, False)):
        found, actions = await run_programs_at_once(client, cores=cores, clients=clients, exclusive=exclusive)
        figures[f"{prefix}ok_of_{clients}"] = found.pop("ok")
        name = f"{'exclusive' if exclusive else 'shared'}_{clients}"
        figures |= {f"{name}_{key}": value for key, value in found.items()}
        samples[name] = actions
    return figures, samples


async def run_programs_at_once(
    client: AsyncTangram, *, cores: int, clients: int, exclusive: bool
) -> tuple[dict[str, float], dict[str, Any]]:
    """Run one program of each of `clients` clients at once. Return figures and samples."""
    floor_cpu_s = _plain_cpu_s()
    done = asyncio.Event()
    probes = asyncio.create_task(_probe_until(client, done))
    begun = time.monotonic()
    actions = await asyncio.gather(*(client.run(_burner_action(number, exclusive)) for number in range(clients)))
    wall_s = time.monotonic() - begun
    done.set()
    others = await probes
    floor_s = floor_cpu_s * clients / cores
    figures = {
        "ok": float(sum(action.outcome == "ok" for action in actions)),
        "wall_s": round(wall_s, 3),
        "floor_s": round(floor_s, 3),
        "wall_over_floor": round(wall_s / floor_s, 4),
        "program_cpu_s": round(floor_cpu_s, 4),
        "other_p50_s": round(median(others), 4),
        "other_p99_s": round(sorted(others)[min(len(others) - 1, int(len(others) * 0.99))], 4),
        "run_max_s": round(max(action.times.run_s or 0.0 for action in actions), 3),
        "queue_max_s": round(max(action.times.queue_s or 0.0 for action in actions), 3),
        "cpu_in_sandboxes_s": round(sum(action.result.cpu_s for action in actions if action.result), 3),
    }
    return figures, {"actions": [_to_sample(action) for action in actions], "other_s": [round(s, 4) for s in others]}


async def _probe_until(client: AsyncTangram, done: asyncio.Event) -> list[float]:
    """Run `true` in other environments until `done`. Its higher priority expresses that the client does not queue."""
    durations = []
    while not done.is_set():
        begun = time.monotonic()
        await client.run(_probe_action())
        durations.append(time.monotonic() - begun)
        try:
            async with asyncio.timeout(PROBE_INTERVAL_S):
                await done.wait()
        except TimeoutError:
            continue
    return durations


def _burner_action(number: int, exclusive: bool) -> SubmitActionRequest:
    """Return a program with one exclusive core, or with shared cores and no declared minimum."""
    form: dict[str, Any] = {"cpu": 1, "exclusive": True} if exclusive else {}
    return exec_action(
        task="false-timeouts",
        trajectory=f"client-{number}",
        scope="ephemeral",
        argv=["python3", "-c", PROGRAM.format(cpu_s=CPU_S)],
        timeout_s=TIMEOUT_S,
        memory_mib=64,
        **form,
    )


def _probe_action() -> SubmitActionRequest:
    return exec_action(task="false-timeouts-probe", argv=["true"], memory_mib=64, priority=1, timeout_s=TIMEOUT_S)


def _plain_cpu_s() -> float:
    """Measure the CPU time of the program as a plain process on this machine, median of three."""
    samples = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", PROGRAM.format(cpu_s=CPU_S)], check=True, env={"PATH": os.defpath})
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        samples.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return median(samples)


def _to_sample(action: Action) -> dict[str, Any]:
    return {
        "outcome": action.outcome,
        "queue_s": action.times.queue_s,
        "run_s": action.times.run_s,
        "overhead_s": action.times.overhead_s,
        "cpu_s": action.result.cpu_s if action.result else None,
    }
