"""Test events of a Slurm cluster: a signal before the end of a job, its walltime, requeued and refused jobs."""

import asyncio
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from arl_core.domain.states import WaitReason
from support.engines import PoolRun, SlurmEngineFixture
from support.machine import Machine

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("engine", ["slurm"], indirect=True)]

StartPool = Callable[..., Awaitable[PoolRun]]


async def restarted_with(pool: PoolRun, *flags: str) -> None:
    """Replace the controller of a pool by one with further options, which apply to later jobs."""
    pool.controllers[-1].terminate()
    pool.controllers[-1].wait(timeout=30)
    pool.start_controller(*flags)


async def until_reason(pool: PoolRun, *words: str) -> str:
    """Wait until the status of the pool has these words, and return it."""

    async def is_reported() -> bool:
        state = await pool.state()
        return state is not None and all(word in state.reason for word in words)

    await pool.until(is_reported)
    state = await pool.state()
    assert state is not None
    return state.reason


async def test_pool_larger_than_the_partition_reports_why_jobs_wait(
    start_pool: StartPool, slurm_engine: SlurmEngineFixture
) -> None:
    pool = await start_pool("large", "min=4,max=4,cores=1")
    await until_reason(pool, "jobs wait in Slurm's queue: 1 for Resources")

    async def has_three() -> bool:
        state = await pool.state()
        return state is not None and (state.ready, state.present) == (3, 4)

    await pool.until(has_three)


async def test_refused_job_is_in_the_status_of_the_pool(start_pool: StartPool) -> None:
    pool = await start_pool("refused", "min=1,max=1,cores=1", "--partition", "nowhere")
    await until_reason(pool, "Slurm accepts no job: sbatch: invalid partition specified: nowhere")
    await restarted_with(pool)
    await pool.until_ready(1)


async def test_too_short_time_limit_is_in_the_status_of_the_pool(start_pool: StartPool) -> None:
    pool = await start_pool("short", "min=1,max=1,cores=1", "--sbatch-option=--time=2")
    await until_reason(pool, "the time limit of jobs is 120 s and must be at least 150 s: give --time")


async def test_signal_drains_the_node_and_its_action_ends(
    start_pool: StartPool, slurm_engine: SlurmEngineFixture, machine: Machine
) -> None:
    pool = await start_pool("drained", "min=1,max=1,cores=1")
    (victim,) = await pool.until_ready(1)
    running = asyncio.create_task(pool.run(8.0))

    async def is_running() -> bool:
        return any(node.running for node in await pool.nodes())

    await pool.until(is_running)
    slurm_engine.cluster.run("scancel", "--batch", "--signal=USR1", slurm_engine.job_of(victim))

    async def is_replaced() -> bool:
        return any(node.name != victim and node.alive for node in await pool.nodes())

    await pool.until(is_replaced)
    assert (await running).node == victim
    (replaced,) = await pool.until_ready(1)
    assert (replaced != victim, (await pool.run(0.1)).node) == (True, replaced)
    assert not list((slurm_engine.cluster.directory / "nodes").glob(f"*/{victim}")), "the job removes its files"
    done = machine.cli("check", check=False)
    assert done.returncode == 0, done.stdout + done.stderr


async def test_action_longer_than_the_rest_of_the_job_starts_on_the_replacement(
    start_pool: StartPool, slurm_engine: SlurmEngineFixture, machine: Machine
) -> None:
    """The node's job has 10 minutes left, the action may run for 15, and the job of the replacement has 20."""
    pool = await start_pool("walltime", "min=1,max=1,cores=1", "--time", "10")
    (short,) = await pool.until_ready(1)
    (node,) = await pool.nodes()
    assert node.ends_at is not None
    assert 400 < (node.ends_at - node.registered_at).total_seconds() < 600
    assert ", ends 20" in machine.cli("nodes", "list").stdout
    await restarted_with(pool)
    submitted = await pool.client.submit(task=pool.name, argv=["sleep", "0.1"], timeout_s=900)
    assert (await pool.run(0.1, timeout_s=60)).node == short

    async def is_explained() -> bool:
        wait = (await pool.client.explain(submitted.id)).wait
        return wait is not None and wait.reason is WaitReason.NODES_END_TOO_SOON

    await pool.until(is_explained)
    said = machine.cli("explain", str(submitted.id)).stdout
    assert "because its machine ends it; it may run for 960 s" in said
    slurm_engine.cluster.run("scancel", "--batch", "--signal=USR1", slurm_engine.job_of(short))
    async with asyncio.timeout(60):
        (action,) = await pool.client.wait([submitted.id])
    assert (action.outcome, action.node == short) == ("ok", False)


async def test_requeued_job_is_replaced(
    start_pool: StartPool, slurm_engine: SlurmEngineFixture, machine: Machine
) -> None:
    """Slurm holds a requeued job for two minutes; the pool has another node earlier."""
    pool = await start_pool("requeued", "min=2,max=2,cores=1")
    names = await pool.until_ready(2)
    victim = min(names)
    job = slurm_engine.job_of(victim)
    slurm_engine.cluster.run("scontrol", "requeue", job)

    async def is_gone() -> bool:
        return victim not in {node.name for node in await pool.nodes()}

    await pool.until(is_gone, timeout_s=60)
    replaced = await pool.until_ready(2, timeout_s=60)
    assert len(replaced & names) == 1
    assert job not in slurm_engine.cluster.run("squeue", "--noheader", "--format=%i").split()
    await pool.run_on_each(replaced)
    done = machine.cli("check", check=False)
    assert done.returncode == 0, done.stdout + done.stderr


async def test_token_is_not_in_what_slurm_shows_of_a_job(
    start_pool: StartPool, slurm_engine: SlurmEngineFixture
) -> None:
    pool = await start_pool("quiet", "min=1,max=1,cores=1")
    (name,) = await pool.until_ready(1)
    (pid,) = pool.engine.process_ids("quiet").values()
    variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
    (token,) = [each.partition("=")[2] for each in variables if each.startswith("TANGRAM_JOIN_TOKEN=")]
    job = slurm_engine.job_of(name)
    shown = slurm_engine.cluster.run("scontrol", "show", "job", "-dd", job)
    script = slurm_engine.cluster.run("scontrol", "write", "batch_script", job, "-")
    assert (f"JobId={job}" in shown, "node_job" in script, token in shown + script) == (True, True, False)
    output = pool.machine.directory / "pools" / "slurm" / "logs" / f"{name}.log"
    assert token not in output.read_text()
    assert stat.S_IMODE(output.stat().st_mode) & 0o077 == 0
