"""Recorded runs of agents: the thinking time before each command, and its run time."""

import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from arl_sim.workload import ActionWork, ResourceKind, SimTrajectory, SimWorkload, TrajectoryAction
from arl_sim.workloads.trace import TraceError

__all__ = ["AgentRun", "agent_workload", "load_agent_runs", "peak_commands", "read_agent_runs", "sample_runs"]

CPU_SHARE = 0.35
"""Fraction of the run time in which a command uses a core. Recorded runs have 0.2 to 0.5."""
MIN_RUN_S = 0.001


@dataclass(frozen=True, slots=True)
class AgentRun:
    """One recorded run."""

    id: int
    source: str
    agent: str
    turns: tuple[tuple[float, float], ...]
    """Thinking time before the command, and run time of the command, in seconds."""
    kinds: tuple[str, ...] = ()
    """Kind of each command, such as `test`; empty if they were not recorded."""
    verify_s: float | None = None
    """Run time of the tests at the end; None if it was not recorded."""

    @property
    def length_s(self) -> float:
        """Return the length of the run without waiting."""
        return sum(think_s + run_s for think_s, run_s in self.turns)


@cache
def load_agent_runs(agent: str) -> tuple[AgentRun, ...]:
    """Return the recorded runs of an agent whose thinking and running are both known, by id.

    Raises ValueError if there are none.
    """
    packed = files("arl_sim").joinpath("data/agent_runs.jsonl.gz").read_bytes()
    found = [run for run in read_agent_runs(gzip.decompress(packed).decode().splitlines()) if run.agent == agent]
    if not found:
        raise ValueError(f"no recorded run of {agent!r} has thinking and run times")
    return tuple(sorted(found, key=lambda run: run.id))


def read_agent_runs(lines: Iterable[str]) -> list[AgentRun]:
    """Read trajectories, one JSON object per line with `turns` as lists of thinking and run time.

    Lines whose `split` says that one of both is unknown are left out. Raises TraceError for a line that is none.
    """
    found = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                row = json.loads(line)
                run = _parse_run(row, number) if row.get("split", "full") == "full" else None
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as wrong:
                raise TraceError(f"line {number} is no trajectory with `turns`: {wrong!r}") from None
            if run is not None and run.turns:
                found.append(run)
    return found


def sample_runs(runs: Sequence[AgentRun], count: int, seed: int) -> list[AgentRun]:
    """Return `count` runs drawn at random, each at most once as long as there are enough."""
    whole, rest = divmod(count, len(runs))
    drawn = np.random.default_rng(seed).permutation(len(runs))[:rest]
    return [*(list(runs) * whole), *(runs[at] for at in drawn)]


def agent_workload(runs: Sequence[AgentRun], *, cpu_share: float = CPU_SHARE) -> SimWorkload:
    """Return a training step in which all runs start together, each in an environment of its own.

    A command uses a core for `cpu_share` of its run time and waits otherwise.
    """
    return SimWorkload(tuple(SimTrajectory("ai-coding", _actions_of(run, cpu_share)) for run in runs))


def _actions_of(run: AgentRun, cpu_share: float) -> tuple[TrajectoryAction, ...]:
    kinds = run.kinds or ("command",) * len(run.turns)
    actions = [
        TrajectoryAction(think_s, _command(f"{run.agent}-{kind}", run_s, cpu_share))
        for (think_s, run_s), kind in zip(run.turns, kinds, strict=True)
    ]
    if run.verify_s:
        actions.append(TrajectoryAction(0.0, _command(f"{run.agent}-verify", run.verify_s, cpu_share)))
    return tuple(actions)


def _command(cls: str, run_s: float, cpu_share: float) -> ActionWork:
    cpu_s = max(MIN_RUN_S, run_s) * cpu_share
    return ActionWork(cls=cls, resource_kind=ResourceKind.CPU, seconds=cpu_s, choices=(cpu_share,))


def _parse_run(row: dict[str, Any], number: int) -> AgentRun:
    turns = tuple((float(turn[0] or 0.0), float(turn[1] or 0.0)) for turn in row["turns"])
    if any(think_s < 0.0 or run_s < 0.0 for think_s, run_s in turns):
        raise ValueError("a time is negative")
    kinds = tuple(str(turn[2]) if len(turn) > 2 else "command" for turn in row["turns"])
    names = (str(row.get("src", "")), str(row.get("agent", "agent")))
    return AgentRun(int(row.get("id", number)), *names, turns, kinds, row.get("verify_s"))


def peak_commands(runs: tuple[AgentRun, ...]) -> int:
    """Return the most commands that run at one time if all runs start together and no command waits."""
    changes: list[tuple[float, int]] = []
    for run in runs:
        now_s = 0.0
        for think_s, run_s in run.turns:
            now_s += think_s
            changes += [(now_s, 1), (now_s + run_s, -1)]
            now_s += run_s
    running = peak = 0
    for _, change in sorted(changes):
        running += change
        peak = max(peak, running)
    return peak
