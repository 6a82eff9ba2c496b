"""Test the recorded runs of agents."""

import pytest

from arl_sim.workloads.agent_runs import AgentRun, load_agent_runs, peak_commands


def test_recorded_runs_of_an_agent_are_loaded() -> None:
    runs = load_agent_runs("mini-swe-agent")
    assert len(runs) == 117
    assert sum(len(run.turns) for run in runs) == 2198
    assert all(think_s >= 0 and run_s >= 0 for run in runs for think_s, run_s in run.turns)
    assert max(run.length_s for run in runs) == pytest.approx(644.4, abs=0.1)


def test_agent_without_recorded_runs_is_named_in_the_error() -> None:
    with pytest.raises(ValueError, match="'agent-z'"):
        load_agent_runs("agent-z")


def test_peak_counts_commands_that_run_at_one_time() -> None:
    first = AgentRun(1, "x", "x", ((1.0, 2.0), (5.0, 1.0)))
    second = AgentRun(2, "x", "x", ((2.0, 3.0),))
    third = AgentRun(3, "x", "x", ((5.0, 1.0),))  # it starts when the second's command ends
    assert peak_commands((first, second, third)) == 2
