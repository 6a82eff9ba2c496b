"""A benchmark of leader recovery: the time from the death of a leader until the new one has run a first action.

It uses a separate system with Postgres, while submissions continue. The old leader is paused while the queue is
inserted, because no leader receives so many actions at once; its lease has expired when it dies. The measured time
covers the supervisor's restart, the start of the process and reading every row. Grants begin after all rows are read.
"""

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import quantiles
from typing import Any
from uuid import UUID

from arl_bench.harness.bench_system import EXCLUSIVE_CORES, BenchSystem, bench_system
from arl_bench.harness.process_usage import tree_cpu_s
from arl_tangram.async_client import AsyncTangram
from arl_tangram.options import exec_action
from arl_wire.actions.action import SubmitActionRequest

__all__ = ["run_leader_recovery"]

CORES = 64
FIRST_BATCH = 1000
"""Number of actions submitted through the API in one batch. The other rows are copies of them."""
TASKS = 8
CLASSES = 64
BACKGROUND_TASK = "meanwhile"
BACKGROUND_BATCH = 20
SUBMIT_INTERVAL_S = 0.1
TIMEOUT_S = 300.0
_QUEUE_DEPTH_METRIC = re.compile(r"^tangram_queue_depth\{[^}]*\} (\S+)$", re.MULTILINE)


def run_leader_recovery(
    waiting: int, report_progress: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Return figures, whose names do not contain the queue length, and the measured values."""
    with bench_system(driver="simulated", cores=CORES, environment=EXCLUSIVE_CORES) as system:
        found = asyncio.run(_measure(system, waiting, report_progress))
    cuts = quantiles(found["submit_s"], n=100, method="inclusive")
    figures = {
        "rebuild_s": found["rebuild_s"],
        "rebuild_submit_p50_ms": 1000 * cuts[49],
        "rebuild_submit_p99_ms": 1000 * cuts[98],
    }
    return {name: round(value, 3) for name, value in figures.items()}, found


async def _measure(system: BenchSystem, waiting: int, report_progress: Callable[[str], None]) -> dict[str, Any]:
    async with system.client() as client:
        with _paused_process(system.process_pids()["scheduler"]):
            first = await client.submit_many([_make_action(number) for number in range(FIRST_BATCH)])
            report_progress(f"{waiting} waiting: inserting them")
            await _multiply_rows(system, waiting // FIRST_BATCH - 1)
        report_progress(f"{waiting} waiting: a new leader reads them")
        began, over = time.monotonic(), asyncio.Event()
        submitting = asyncio.create_task(_submit_until(client, over))
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await _wait_any_settled(client, first)
            rebuild_s = time.monotonic() - began
        finally:
            over.set()
        return {
            "waiting": waiting,
            "rebuild_s": round(rebuild_s, 3),
            "known": await _count_known_actions(system, waiting),
            "leader_cpu_s": round(tree_cpu_s(system.process_pids()["scheduler"]), 3),
            "submit_s": await submitting,
        }


@contextmanager
def _paused_process(pid: int) -> Iterator[None]:
    """Pause a process of the benchmark's system, and kill it at the end."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)


def _make_action(number: int) -> SubmitActionRequest:
    """Build an action. Every second one has its own trajectory, and half of the actions are elastic."""
    cls, is_elastic = number % CLASSES, number % 4 < 2
    given: dict[str, Any] = {"task": f"task-{number % TASKS}", "profile": f"class-{cls}", "argv": ["true"]}
    given |= {"memory_mib": 64, "disk_mib": 16, "cpu": (1, 8) if is_elastic else 1}
    given |= {"parallel_fraction": 0.9} if is_elastic else {}
    given |= {"trajectory": f"step-{number}"} if number % 2 else {}
    return exec_action(**given)


async def _multiply_rows(system: BenchSystem, times: int) -> None:
    command = (sys.executable, "-m", "arl_bench.micro.backlog", str(system.directory), str(times))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    if process.returncode or int(said) != times * FIRST_BATCH:
        raise RuntimeError(
            f"{times * FIRST_BATCH} rows were to be inserted: {said.decode().strip() or process.returncode}"
        )


async def _submit_until(client: AsyncTangram, stop: asyncio.Event) -> list[float]:
    """Submit batches until `stop` is set. Return the duration of each in seconds."""
    actions = [exec_action(task=BACKGROUND_TASK, argv=["true"], memory_mib=64, disk_mib=16)] * BACKGROUND_BATCH
    found: list[float] = []
    while not stop.is_set():
        began = time.monotonic()
        await client.submit_many(actions)
        found.append(round(time.monotonic() - began, 4))
        await asyncio.sleep(SUBMIT_INTERVAL_S)
    return found


async def _wait_any_settled(client: AsyncTangram, ids: Sequence[UUID]) -> None:
    async for _ in client.as_completed(ids):
        return


async def _count_known_actions(system: BenchSystem, waiting: int) -> int:
    """Return the number of queued actions that the leader knows. Nearly all remain, as only a few rounds have run."""
    text = await system.read_metrics("scheduler")
    known = sum(int(float(depth)) for depth in _QUEUE_DEPTH_METRIC.findall(text))
    if known < 0.9 * waiting:
        raise RuntimeError(f"the leader knows {known} of {waiting}; nothing is measured")
    return known
