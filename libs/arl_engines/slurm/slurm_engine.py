"""The Slurm engine: one requeueable job per node. The name of a job has the name of its node.

The job runs `tangram node up` from an environment of this project; see `node_job`. The jobs and the table of nodes
outlive the controller.
"""

import asyncio
import logging
import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from arl_engines.engine import (
    EngineCapabilities,
    EngineNode,
    EngineNodeState,
    NodeCommands,
    NodeRequest,
    PoolSpec,
)
from arl_engines.node_names import locked_directory, new_node_name
from arl_engines.node_table import EngineNodeTable
from arl_engines.slurm.job_backoff import JobBackoff
from arl_engines.slurm.node_job import DRAINING, STOP_RESERVE_S
from arl_engines.slurm.slurm_commands import JobRefused, JobRequest, SlurmJob

__all__ = ["SlurmEngine", "SlurmOptions", "SlurmQueue"]

REFUSED_PAUSE_S = 15.0
"""Seconds after a refused job in which the pool submits no other one."""
UNANSWERED_PAUSE_S = 30.0
"""Seconds after a submission without an answer until the node gets another job."""
MIN_OPEN_S = 60.0
"""Seconds for which a node must at least be open before its job signals it."""
ENDING_MARGIN_S = 5.0
"""Seconds before the signal of Slurm at which a node counts as stopping."""
_OVER = frozenset({"COMPLETING", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"})
"""States of jobs whose node has ended or is about to."""
_STARTED = frozenset({"RUNNING", "SUSPENDED", "STOPPED"})

log = logging.getLogger(__name__)


class SlurmQueue(Protocol):
    """The commands of Slurm; see `SlurmCommands`."""

    async def jobs(self, prefix: str) -> dict[str, SlurmJob]:
        """Return this user's jobs that are not over and whose name begins with `prefix`, by name."""
        ...

    async def submit(self, request: JobRequest) -> str:
        """Submit a job and return its id. Raises `JobRefused`."""
        ...

    async def signal(self, job: str, name: str) -> None:
        """Send a signal to the script of a job."""
        ...

    async def cancel(self, job: str) -> None:
        """Cancel a job."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """The options of all jobs."""

    node_python: str
    """Interpreter, on the Slurm nodes, of an environment with the server packages."""
    node_directory: str
    """Directory on the Slurm nodes for the state of nodes."""
    log_directory: Path
    """Directory for the output of jobs, on this machine and on the Slurm nodes."""
    sbatch: tuple[str, ...] = ()
    """Further options of sbatch."""
    signal_before_s: int = 300
    """Seconds before the time limit of a job at which its node begins to drain."""
    is_exclusive: bool = True
    """Each job gets a whole Slurm node. If False, a pool submits its jobs one after another."""
    memory_mib: int | None = None
    """Memory of a job that does not get a whole Slurm node, in MiB."""

    @property
    def min_time_limit_s(self) -> float:
        """Return the shortest time limit of a job: shorter ones would end soon after their start."""
        return max(self.signal_before_s, STOP_RESERVE_S) + MIN_OPEN_S


@dataclass(slots=True, kw_only=True)
class SlurmNodeRecord:
    """A node and its job."""

    name: str
    pool: str
    job: str | None = None
    """Id of the job; None until Slurm has accepted it."""
    submitted_s: float = 0.0
    """Time of the last submission, in seconds since 1970."""
    started: bool = False
    """The job has run. If it waits again, it was requeued."""
    ending: bool = False
    """The node drains, because its job ends soon."""
    stop_by_s: float | None = None
    """Time, in seconds since 1970, at which the job of a released node is cancelled; None unless it was released."""


SlurmNodeTable = EngineNodeTable[SlurmNodeRecord]


class SlurmEngine:
    """Nodes as jobs of a Slurm cluster."""

    name = "slurm"
    capabilities = EngineCapabilities(
        elastic=True,
        victim_choice=True,
        preemption_notice=True,
        restarts_manager=True,
        root=False,
        cgroup=False,
        gpu=True,
    )

    def __init__(self, directory: Path, commands: NodeCommands, queue: SlurmQueue, options: SlurmOptions) -> None:
        """Keep the table of nodes in `directory`/slurm; names of nodes come from `directory`."""
        self._names = directory.absolute()
        self._directory = self._names / "slurm"
        self._commands = commands
        self._queue = queue
        self._options = options
        self._refusals: dict[str, tuple[float, str]] = {}
        """Time and message of the last refused job, by pool."""
        self._backoff = JobBackoff()

    async def ensure(self, pool: PoolSpec, count: int) -> str:
        """Submit jobs until the pool has `count` nodes that do not stop. Return why jobs wait or are refused.

        Raises `ClusterEngineError`.
        """
        async with locked_directory(self._directory):
            table, jobs = await self._swept()
            records = table.of_pool(pool.name)
            wanted = [each for each in records if self._state(each, jobs.get(each.name)) is not _STOPPING]
            await self._refuse_short_jobs(table, pool, jobs)
            refused_at, refusal = self._refusals.get(pool.name, (float("-inf"), ""))
            if time.monotonic() - refused_at < REFUSED_PAUSE_S:
                return refusal
            if pause := self._backoff.pause_text(pool.name):
                return pause
            new = [SlurmNodeRecord(name="", pool=pool.name) for _ in range(count - len(wanted))]
            for record in (*(each for each in wanted if _is_unsubmitted(each)), *new):
                if not self._may_submit(table.of_pool(pool.name), jobs):
                    break
                try:
                    await self._submit(table, record, pool, jobs)
                except JobRefused as error:
                    refusal = f"Slurm accepts no job: {error}"
                    self._refusals[pool.name] = time.monotonic(), refusal
                    return refusal
        self._refusals.pop(pool.name, None)
        return _waiting_text([jobs[each.name] for each in wanted if each.name in jobs])

    async def nodes(self) -> Sequence[EngineNode]:
        """Return the nodes by name. Nodes whose jobs are over disappear."""
        async with locked_directory(self._directory):
            table, jobs = await self._swept()
        found = []
        for name, record in sorted(table.records.items()):
            job = jobs.get(name)
            waits = job is not None and job.state == "PENDING"
            found.append(
                EngineNode(
                    name=name,
                    pool=record.pool,
                    state=self._state(record, job),
                    engine_id=f"job {record.job}" if record.job is not None else "",
                    reason=f"waits in Slurm's queue: {job.reason}" if job is not None and waits else "",
                )
            )
        return found

    async def release(self, node: str, deadline_s: float) -> None:
        """Stop a node whose job runs, or cancel a job that waits."""
        async with locked_directory(self._directory):
            table, jobs = await self._swept()
            record, job = table.records.get(node), jobs.get(node)
            if record is None or record.stop_by_s is not None:
                return
            record.stop_by_s = time.time() + deadline_s
            table.put(record)
            log.info("%s: stopping", node)
            if job is not None and job.state == "PENDING":
                await self._queue.cancel(job.id)
            elif job is not None:
                await self._queue.signal(job.id, "USR2")

    async def logs(self, node: str, tail: int) -> str:
        """Return the last lines of the output of a node's job; empty if there is none."""
        return await asyncio.to_thread(_last_lines, self._output(node), tail)

    async def _refuse_short_jobs(self, table: SlurmNodeTable, pool: PoolSpec, jobs: Mapping[str, SlurmJob]) -> None:
        """Submit no further jobs while one has a time limit that is too short: its node would only start and drain.

        Those that wait are cancelled.
        """
        least_s = self._options.min_time_limit_s
        for record in table.of_pool(pool.name):
            job = jobs.get(record.name)
            if job is None or job.time_limit_s is None or job.time_limit_s >= least_s:
                continue
            if job.state == "PENDING":
                await self._queue.cancel(job.id)
                self._drop(table, record, f"the time limit of its job is {job.time_limit_s:.0f} s")
            self._refusals[pool.name] = (
                time.monotonic(),
                f"the time limit of jobs is {job.time_limit_s:.0f} s and must be at least {least_s:.0f} s: give --time,"
                " or a smaller --signal-before",
            )

    async def _swept(self) -> tuple[SlurmNodeTable, Mapping[str, SlurmJob]]:
        """Return the table and the jobs by node, without nodes that are gone.

        A job that was requeued is cancelled and its node is dropped: Slurm holds such a job for about two minutes, and
        its next machine may not have the node's files.
        """
        table = SlurmNodeTable(self._directory / "nodes.json", SlurmNodeRecord)
        prefix = f"{table.namespace}-"
        found = await self._queue.jobs(prefix)
        jobs = {name.removeprefix(prefix): job for name, job in found.items()}
        for name in sorted(jobs.keys() - table.records.keys()):
            if jobs[name].state in _OVER:
                continue
            # Slurm accepted it although `sbatch` failed, such as by a timeout. No record means that no one wants it.
            log.warning("%s: job %s belongs to no node and is cancelled", name, jobs[name].id)
            await self._queue.cancel(jobs[name].id)
        for record in list(table.records.values()):
            job = jobs.get(record.name)
            if job is None:
                if record.job is not None or record.stop_by_s is not None:
                    self._note_end(record)
                    self._drop(table, record, "its job is over")
                continue
            before = (record.job, record.started, record.ending)
            record.job = record.job or job.id
            record.started |= job.state in _STARTED
            if record.started:
                self._backoff.note_stable(record.pool, age_s=time.time() - record.submitted_s)
            record.ending |= self._is_ending(job)
            if before != (record.job, record.started, record.ending):
                table.write()
            if job.state == "PENDING" and (record.started or "requeued" in job.reason.lower()):
                await self._queue.cancel(job.id)
                self._drop(table, record, f"its job {job.id} was requeued and is cancelled")
            elif job.state not in _OVER and record.stop_by_s is not None and time.time() > record.stop_by_s:
                await self._queue.cancel(job.id)
        return table, jobs

    def _note_end(self, record: SlurmNodeRecord) -> None:
        """Count the end of a job that was not asked to end."""
        if record.stop_by_s is None and not record.ending:
            last = _last_lines(self._output(record.name), 1) or "it wrote no output"
            age_s = time.time() - record.submitted_s
            self._backoff.note_end(record.pool, age_s=age_s, message=f"{record.name}: {last}")

    def _drop(self, table: SlurmNodeTable, record: SlurmNodeRecord, reason: str) -> None:
        if record.stop_by_s is not None or record.ending:
            log.info("%s: stopped", record.name)
            self._output(record.name).unlink(missing_ok=True)
        else:
            log.warning("%s: lost: %s; its output: %s", record.name, reason, self._output(record.name))
        table.drop(record)

    def _state(self, record: SlurmNodeRecord, job: SlurmJob | None) -> EngineNodeState:
        """Return the state of a node. A node that drains because its job ends soon counts as stopping."""
        if record.stop_by_s is not None or record.ending:
            return EngineNodeState.STOPPING
        if job is None:
            return EngineNodeState.STARTING
        if job.state == "PENDING":
            return EngineNodeState.WAITING
        if job.state in _OVER:
            return EngineNodeState.STOPPING
        return EngineNodeState.RUNNING if job.state in _STARTED else EngineNodeState.STARTING

    def _is_ending(self, job: SlurmJob) -> bool:
        """Return True if the job has got the signal of Slurm, or gets it soon."""
        if job.comment == DRAINING:
            return True
        return job.time_left_s is not None and job.time_left_s < self._options.signal_before_s + ENDING_MARGIN_S

    def _may_submit(self, records: Sequence[SlurmNodeRecord], jobs: Mapping[str, SlurmJob]) -> bool:
        """Return True unless a job of the pool waits that could get the same Slurm node."""
        if self._options.is_exclusive:
            return True
        submitted = [each for each in records if each.job is not None]
        return all(each.name in jobs and jobs[each.name].state != "PENDING" for each in submitted)

    async def _submit(
        self,
        table: SlurmNodeTable,
        record: SlurmNodeRecord,
        pool: PoolSpec,
        jobs: Mapping[str, SlurmJob],
    ) -> None:
        if not record.name:
            async with locked_directory(self._names):
                record.name = new_node_name(self._names, pool.name)
            table.put(record)
        directory = Path(self._options.node_directory) / table.namespace / record.name
        command = await self._commands.command_for(
            NodeRequest(name=record.name, pool=pool, directory=directory / "state")
        )
        words = [self._options.node_python, "-P", "-m", "arl_engines.slurm.node_job", "--dir", str(directory)]
        words += ["--signal-before", str(self._options.signal_before_s), "--"]
        words += [word.replace(str(directory), "DIRECTORY") for word in command.argv]
        script = f"#!/bin/sh\nexec {shlex.join(words)}\n"
        options = (f"--job-name={table.namespace}-{record.name}", *self._placement(pool, table, jobs), *self._usual())
        request = JobRequest(
            options=(*options, f"--output={self._output(record.name)}", *self._options.sbatch),
            script=script,
            env=command.env,
        )
        self._output(record.name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        record.submitted_s = time.time()
        table.write()
        try:
            record.job = await self._queue.submit(request)
        except JobRefused:
            table.drop(record)
            raise
        table.write()
        log.info("%s: started, job %s", record.name, record.job)

    def _placement(self, pool: PoolSpec, table: SlurmNodeTable, jobs: Mapping[str, SlurmJob]) -> tuple[str, ...]:
        """Return the options that ensure at most one node of the pool on each Slurm node."""
        if self._options.is_exclusive:
            return ("--exclusive", "--mem=0")
        memory = (f"--mem={self._options.memory_mib}M",) if self._options.memory_mib is not None else ()
        used = {jobs[each.name].node for each in table.of_pool(pool.name) if each.name in jobs}
        cores = (f"--cpus-per-task={pool.cores}",) if pool.cores is not None else ()
        return (*((f"--exclude={','.join(sorted(used - {''}))}",) if used - {""} else ()), *cores, *memory)

    def _usual(self) -> tuple[str, ...]:
        signal = f"--signal=B:USR1@{self._options.signal_before_s}"
        return ("--nodes=1", "--ntasks=1", "--requeue", signal, "--chdir=/", "--open-mode=append")

    def _output(self, node: str) -> Path:
        return self._options.log_directory / f"{node}.log"


_STOPPING = EngineNodeState.STOPPING


def _is_unsubmitted(record: SlurmNodeRecord) -> bool:
    """Return True if the node needs a job. After a submission without an answer, the job may still appear."""
    return record.job is None and time.time() - record.submitted_s > UNANSWERED_PAUSE_S


def _waiting_text(jobs: Sequence[SlurmJob]) -> str:
    """Return why jobs wait, in words; empty if none waits."""
    reasons = Counter(job.reason for job in jobs if job.state == "PENDING" and job.reason not in ("", "None"))
    words = ", ".join(f"{count} for {reason}" for reason, count in sorted(reasons.items()))
    return f"jobs wait in Slurm's queue: {words}" if words else ""


def _last_lines(path: Path, count: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 400 * count))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-count:])
    except OSError:
        return ""
