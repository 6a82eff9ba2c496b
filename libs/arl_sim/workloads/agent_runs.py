"""Recorded runs of agents: the thinking time before each command, and its run time."""

import gzip
import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

__all__ = ["AgentRun", "load_agent_runs", "peak_commands"]


@dataclass(frozen=True, slots=True)
class AgentRun:
    """One recorded run."""

    id: int
    source: str
    agent: str
    turns: tuple[tuple[float, float], ...]
    """Thinking time before the command, and run time of the command, in seconds."""

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
    rows = (json.loads(line) for line in gzip.decompress(packed).splitlines())
    found = [
        AgentRun(row["id"], row["src"], row["agent"], tuple((turn[0] or 0.0, turn[1] or 0.0) for turn in row["turns"]))
        for row in rows
        if row["split"] == "full" and row["agent"] == agent
    ]
    if not found:
        raise ValueError(f"no recorded run of {agent!r} has thinking and run times")
    return tuple(sorted(found, key=lambda run: run.id))


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
