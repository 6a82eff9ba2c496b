"""The Slurm engine with a queue in memory, and the output of Slurm's commands."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from arl_engines.engine import ClusterEngineError, EngineNodeState, NodeCommand, NodeRequest, PoolSpec
from arl_engines.slurm.node_job import DRAINING
from arl_engines.slurm.slurm_commands import (
    JobRefused,
    JobRequest,
    SlurmCommands,
    SlurmJob,
    SlurmUnanswered,
    parse_duration_s,
    parse_jobs,
)
from arl_engines.slurm.slurm_engine import SlurmEngine, SlurmOptions
from arl_local.state_dir import StateDir

POOL = PoolSpec(name="p", max_nodes=3, cores=4)
SECRET = "join-token"


class MemorySlurm:
    """The jobs of a user, by name."""

    def __init__(self) -> None:
        self.found: dict[str, SlurmJob] = {}
        self.requests: list[JobRequest] = []
        self.sent: list[tuple[str, str]] = []
        self.refusal = ""
        self.answers = True
        self.answers_submissions = True

    async def jobs(self, prefix: str) -> dict[str, SlurmJob]:
        if not self.answers:
            raise ClusterEngineError("squeue: no controller")
        return {name: job for name, job in self.found.items() if name.startswith(prefix)}

    async def submit(self, request: JobRequest) -> str:
        if self.refusal:
            raise JobRefused(self.refusal)
        self.requests.append(request)
        id = str(len(self.requests))
        name = next(each.partition("=")[2] for each in request.options if each.startswith("--job-name="))
        self.found[name] = SlurmJob(id=id, name=name, state="PENDING", reason="Resources", time_limit_s=3600)
        if not self.answers_submissions:
            raise SlurmUnanswered("sbatch: Socket timed out on send/recv operation")
        return id

    async def signal(self, job: str, name: str) -> None:
        self.sent.append((job, name))

    async def cancel(self, job: str) -> None:
        self.sent.append((job, "cancel"))
        self.found = {name: each for name, each in self.found.items() if each.id != job}

    def change(self, node_name: str, **changed: Any) -> None:
        (name,) = [name for name in self.found if name.endswith(f"-{node_name}")]
        self.found[name] = replace(self.found[name], **changed)

    def run(self, name: str, **changed: Any) -> None:
        self.change(name, **{"state": "RUNNING", "node": f"slurm-{name}", "time_left_s": 3000.0} | changed)

    def end(self, node: str) -> None:
        (name,) = [name for name in self.found if name.endswith(f"-{node}")]
        del self.found[name]


class WordCommands:
    async def command_for(self, request: NodeRequest) -> NodeCommand:
        argv = ("node", str(request.directory), "with a space")
        return NodeCommand(argv=argv, env={"TANGRAM_JOIN_TOKEN": SECRET, "TANGRAM_X": "1"})


class Trial:
    """An engine and its queue. `again` is the engine of a restarted controller."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.slurm = MemorySlurm()
        self.directory = directory / "pools"
        paths = {"node_directory": "~/nodes", "log_directory": directory / "logs"}
        self._options = SlurmOptions(node_python="python", sbatch=("--partition=cpu",), **paths, **options)
        self.engine = self.again()

    def again(self) -> SlurmEngine:
        return SlurmEngine(self.directory, WordCommands(), self.slurm, self._options)

    async def states(self) -> dict[str, EngineNodeState]:
        return {node.name: node.state for node in await self.again().nodes()}


async def test_job_of_a_node_has_its_secret_in_the_environment_only(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    await trial.engine.ensure(POOL, 1)
    (request,) = trial.slurm.requests
    assert request.env == {"TANGRAM_JOIN_TOKEN": SECRET, "TANGRAM_X": "1"}
    assert SECRET not in request.script + " ".join(request.options) + repr(request)
    assert request.script.startswith("#!/bin/sh\nexec python -P -m arl_engines.slurm.node_job --dir ")
    assert request.script.endswith(" -- node DIRECTORY/state 'with a space'\n")
    assert {"--exclusive", "--requeue", "--signal=B:USR1@300", "--partition=cpu"} <= set(request.options)


async def test_restarted_controller_submits_no_second_job(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    await trial.engine.ensure(POOL, 2)
    text = await trial.again().ensure(POOL, 2)
    assert (len(trial.slurm.requests), text) == (2, "jobs wait in Slurm's queue: 2 for Resources")
    assert await trial.states() == dict.fromkeys(("p-1", "p-2"), EngineNodeState.WAITING)


async def test_job_that_was_submitted_before_a_crash_is_found_by_its_name(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    await trial.engine.ensure(POOL, 1)
    table = trial.directory / "slurm" / "nodes.json"
    table.write_text(table.read_text().replace('"job": "1"', '"job": null'))
    await trial.again().ensure(POOL, 1)
    assert ('"job": "1"' in table.read_text(), len(trial.slurm.requests)) == (True, 1)


@pytest.mark.parametrize(
    "ending", [{"comment": DRAINING}, {"time_left_s": 290.0}, {"state": "COMPLETING"}], ids=["signal", "time", "over"]
)
async def test_node_that_is_about_to_end_is_replaced(tmp_path: Path, ending: dict[str, Any]) -> None:
    trial = Trial(tmp_path)
    await trial.engine.ensure(POOL, 1)
    trial.slurm.run("p-1")
    assert await trial.states() == {"p-1": EngineNodeState.RUNNING}
    trial.slurm.run("p-1", **ending)
    await trial.engine.ensure(POOL, 1)
    assert await trial.states() == {"p-1": EngineNodeState.STOPPING, "p-2": EngineNodeState.WAITING}
    trial.slurm.end("p-1")
    assert await trial.states() == {"p-2": EngineNodeState.WAITING}


async def test_requeued_job_is_cancelled_and_replaced(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    await trial.engine.ensure(POOL, 1)
    trial.slurm.run("p-1")
    await trial.states()
    trial.slurm.change("p-1", state="PENDING", reason="BeginTime")
    await trial.again().ensure(POOL, 1)
    assert trial.slurm.sent == [("1", "cancel")]
    assert await trial.states() == {"p-2": EngineNodeState.WAITING}


async def test_jobs_that_end_soon_are_not_submitted_again_each_second(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    await trial.engine.ensure(POOL, 1)
    output = tmp_path / "logs" / "p-1.log"
    output.write_text("first\nnode: No such file or directory\n")
    trial.slurm.end("p-1")
    for _ in range(5):
        text = await trial.engine.ensure(POOL, 1)
    assert len(trial.slurm.requests) == 1
    assert text.startswith("1 jobs in a row ended soon, the next one follows in ")
    assert text.endswith("p-1: node: No such file or directory")


async def test_job_of_an_unanswered_submission_is_adopted(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    trial.slurm.answers_submissions = False
    with pytest.raises(ClusterEngineError, match="Socket timed out"):
        await trial.engine.ensure(POOL, 1)
    trial.slurm.answers_submissions = True
    await trial.engine.ensure(POOL, 1)
    assert await trial.states() == {"p-1": EngineNodeState.WAITING}
    assert len(trial.slurm.requests) == 1


async def test_node_of_an_unanswered_submission_gets_no_second_job_at_once(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    trial.slurm.answers_submissions = False
    with pytest.raises(ClusterEngineError):
        await trial.engine.ensure(POOL, 1)
    trial.slurm.found.clear()  # it appears later
    await trial.engine.ensure(POOL, 1)
    assert len(trial.slurm.requests) == 1


async def test_job_without_a_node_is_cancelled(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    await trial.engine.ensure(POOL, 1)
    (name,) = trial.slurm.found
    trial.slurm.found[f"{name}#7"] = SlurmJob(id="7", name=name, state="RUNNING")
    await trial.states()
    assert trial.slurm.sent == [("7", "cancel")]


async def test_released_node_is_signalled_and_then_cancelled(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    await trial.engine.ensure(POOL, 2)
    trial.slurm.run("p-1")
    await trial.engine.release("p-2", 30.0)
    await trial.engine.release("unknown", 30.0)
    await trial.engine.release("p-1", 0.0)
    assert trial.slurm.sent == [("2", "cancel"), ("1", "USR2")]
    assert await trial.states() == {"p-1": EngineNodeState.STOPPING}
    assert trial.slurm.sent[2:] == [("1", "cancel")], "the deadline has passed"
    assert await trial.states() == {}


async def test_refused_job_leaves_no_node_and_is_reported_for_a_while(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    trial.slurm.refusal = "sbatch: invalid partition"
    assert await trial.engine.ensure(POOL, 2) == "Slurm accepts no job: sbatch: invalid partition"
    trial.slurm.refusal = ""
    assert await trial.engine.ensure(POOL, 2) == "Slurm accepts no job: sbatch: invalid partition"
    assert (await trial.states(), trial.slurm.requests) == ({}, [])


async def test_job_with_a_short_time_limit_is_cancelled(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    await trial.engine.ensure(POOL, 1)
    trial.slurm.change("p-1", time_limit_s=300.0)
    said = await trial.engine.ensure(POOL, 1)
    assert said.startswith("the time limit of jobs is 300 s and must be at least 360 s: give --time")
    assert (await trial.states(), len(trial.slurm.requests)) == ({}, 1)


async def test_shared_pool_submits_one_job_at_a_time_elsewhere(tmp_path: Path) -> None:
    trial = Trial(tmp_path, is_exclusive=False, memory_mib=4096)
    for _ in range(2):
        await trial.engine.ensure(POOL, 3)
        assert len(trial.slurm.requests) == 1
    trial.slurm.run("p-1")
    await trial.engine.ensure(POOL, 3)
    assert {"--exclude=slurm-p-1", "--cpus-per-task=4", "--mem=4096M"} <= set(trial.slurm.requests[1].options)
    assert "--exclusive" not in trial.slurm.requests[1].options


async def test_slurm_that_does_not_answer_changes_nothing(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    await trial.engine.ensure(POOL, 1)
    trial.slurm.answers = False
    with pytest.raises(ClusterEngineError, match="no controller"):
        await trial.engine.ensure(POOL, 1)
    trial.slurm.answers = True
    assert await trial.states() == {"p-1": EngineNodeState.WAITING}


async def test_system_with_jobs_is_not_purged(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    await trial.engine.ensure(POOL, 1)
    with pytest.raises(OSError, match=r"still have Slurm jobs: p-1\. Stop them first: tangram engine slurm"):
        StateDir(tmp_path).check_purgeable()


async def test_missing_sbatch_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JobRefused, match="sbatch cannot be started"):
        await SlurmCommands().submit(JobRequest(options=(), script="", env={"A": "1"}))
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: no such partition' >&2\nexit 1\n")
    (tmp_path / "sbatch").chmod(0o755)
    with pytest.raises(JobRefused, match=r"^sbatch: no such partition$"):
        await SlurmCommands().submit(JobRequest(options=(), script="", env={"A": "1"}))


def test_output_of_squeue_is_parsed() -> None:
    lines = (
        "1|t-a-1|RUNNING|None|1-00:00:00|23:59:59|n1|draining",
        "2|t-a-2|PENDING|Resources|UNLIMITED|UNLIMITED||(null)",
        "3|other|RUNNING|None|1:00|0:30|n1|x|y",
        "4|t-a-2|PENDING|Resources|UNLIMITED|UNLIMITED||(null)",
    )
    jobs = parse_jobs("\n".join(lines), "t-")
    assert jobs == {
        "t-a-1": SlurmJob(
            id="1", name="t-a-1", state="RUNNING", reason="None", time_limit_s=86_400, time_left_s=86_399, node="n1",
            comment="draining",
        ),
        "t-a-2": SlurmJob(id="2", name="t-a-2", state="PENDING", reason="Resources"),
        "t-a-2#4": SlurmJob(id="4", name="t-a-2", state="PENDING", reason="Resources"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "seconds", "as_option"),
    [
        ("2:00", 120, 120),
        ("0:07", 7, 7),
        ("7", 7, 420),
        ("1:02:03", 3723, 3723),
        ("2-01:02:03", 176_523, 176_523),
        ("1-02", 86_402, 93_600),
        ("1-02:03", 86_523, 93_780),
        ("UNLIMITED", None, None),
        ("INVALID", None, None),
        ("", None, None),
    ],
)
def test_durations_of_slurm_are_parsed(text: str, seconds: float | None, as_option: float | None) -> None:
    assert (parse_duration_s(text), parse_duration_s(text, is_option=True)) == (seconds, as_option)
