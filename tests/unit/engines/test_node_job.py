"""The process of a Slurm job, with trivial commands in place of the node and of Slurm."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.conditions import eventually, is_running

NODE = '#!/bin/sh\necho "up $$ $*"\nexec sleep 60\n'
ENDS = '#!/bin/sh\necho "up $$ $*"\n'

StartJob = Callable[..., "Job"]


class Job:
    """A job. Its node writes `up PID ARGUMENTS` into the output of the job."""

    def __init__(self, directory: Path, node: str, squeue: str = "echo 10:00", **variables: str) -> None:
        self.directory = directory / "nodes" / "n-1"
        self._output = directory / "output"
        programs = directory / "programs"
        programs.mkdir()
        for name, script in {"node": node, "squeue": f"#!/bin/sh\n{squeue}\n", "scontrol": "#!/bin/sh\n"}.items():
            (programs / name).write_text(script)
            (programs / name).chmod(0o755)
        words = ["--dir", str(self.directory), "--signal-before", "90", "--", str(programs / "node"), "DIRECTORY/state"]
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "arl_engines.slurm.node_job", *words],
                env={**os.environ, "PATH": f"{programs}:/usr/bin:/bin", "SLURM_JOB_ID": "1", **variables},
                stdout=output,
                stderr=output,
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def starts(self) -> list[list[str]]:
        return [line.split()[1:] for line in self.output.splitlines() if line.startswith("up ")]


@pytest.fixture
def start_job(tmp_path: Path) -> Iterator[StartJob]:
    jobs: list[Job] = []

    def start(node: str = NODE, **variables: str) -> Job:
        jobs.append(Job(tmp_path, node, **variables))
        return jobs[-1]

    yield start
    for job in jobs:
        job.process.kill()
        job.process.wait()


async def test_node_knows_the_rest_of_the_job_and_starts_again(start_job: StartJob) -> None:
    job = start_job(ENDS)
    await eventually(lambda: len(job.starts()) >= 2)
    assert job.starts()[0][1:] == [f"{job.directory}/state", "--walltime", "540"]
    assert "the node ended with code 0: starting it again in 0.5 s" in job.output


@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGTERM])
async def test_stopped_job_stops_its_node_and_removes_its_files(start_job: StartJob, number: signal.Signals) -> None:
    job = start_job()
    await eventually(lambda: bool(job.starts()))
    job.process.send_signal(number)
    assert job.process.wait(timeout=15) == 0
    assert not is_running(int(job.starts()[0][0]))
    assert not job.directory.exists()


async def test_node_that_cannot_drain_is_stopped(start_job: StartJob) -> None:
    job = start_job()
    await eventually(lambda: bool(job.starts()))
    job.process.send_signal(signal.SIGUSR1)
    assert job.process.wait(timeout=15) == 0
    assert "SIGUSR1: draining the node within 540 s" in job.output
    assert "has no credentials of a node" in job.output
    assert not is_running(int(job.starts()[0][0]))


async def test_node_dies_with_its_job(start_job: StartJob) -> None:
    job = start_job()
    await eventually(lambda: bool(job.starts()))
    job.process.kill()
    await eventually(lambda: not is_running(int(job.starts()[0][0])))


async def test_node_starts_only_when_its_time_limit_is_known(start_job: StartJob, tmp_path: Path) -> None:
    job = start_job(squeue=f"test -e {tmp_path}/up && echo 10:00 || exit 1")
    await eventually(lambda: "the time limit of the job is unknown: asking again in 1 s" in job.output)
    assert job.starts() == []
    (tmp_path / "up").touch()
    await eventually(lambda: bool(job.starts()))
    assert job.starts()[0][1:] == [f"{job.directory}/state", "--walltime", "540"]


async def test_job_without_a_time_limit_starts_a_node_without_walltime(start_job: StartJob) -> None:
    job = start_job(squeue="echo UNLIMITED")
    await eventually(lambda: bool(job.starts()))
    assert job.starts()[0][1:] == [f"{job.directory}/state"]


async def test_requeued_job_without_the_files_of_its_node_ends(start_job: StartJob) -> None:
    job = start_job(SLURM_RESTART_COUNT="1")
    assert job.process.wait(timeout=15) == 0
    assert (job.starts(), "its token is used: giving up" in job.output) == ([], True)
