"""Test the recorded runs of agents."""

import pytest

from arl_sim.replay import ReplayPolicy, replay
from arl_sim.workloads.agent_runs import (
    AgentRun,
    agent_workload,
    load_agent_runs,
    peak_commands,
    read_agent_runs,
    sample_runs,
)
from arl_sim.workloads.trace import TraceError


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


def test_lines_with_turns_are_read_with_kinds_and_the_verifier() -> None:
    lines = ['{"turns": [[1.5, 2.0, "test"], [null, 0.5]], "agent": "a", "verify_s": 4.0}', "", '{"split": "none"}']
    [run] = read_agent_runs(lines)
    assert (run.turns, run.kinds, run.verify_s) == (((1.5, 2.0), (0.0, 0.5)), ("test", "command"), 4.0)


@pytest.mark.parametrize("line", ["nothing", "[]", '{"turn": []}', '{"turns": [[1]]}', '{"turns": [[-1, 2]]}'])
def test_line_that_is_no_trajectory_is_named_in_the_error(line: str) -> None:
    with pytest.raises(TraceError, match="line 2 is no trajectory"):
        read_agent_runs(['{"turns": [[1, 2]]}', line])


def test_command_uses_its_share_of_a_core_and_waits_otherwise() -> None:
    workload = agent_workload([AgentRun(1, "x", "x", ((1.0, 2.0),), verify_s=4.0)], cpu_share=0.25)
    [command, verifier] = [action.work for action in workload.trajectories[0].actions]
    assert (command.seconds, command.fastest_s) == (0.5, 2.0)
    assert (verifier.seconds, verifier.fastest_s) == (1.0, 4.0)


def test_sample_repeats_runs_only_if_there_are_too_few() -> None:
    runs = load_agent_runs("mini-swe-agent")[:5]
    assert len({run.id for run in sample_runs(runs, 5, seed=3)}) == 5
    assert len(sample_runs(runs, 12, seed=3)) == 12


@pytest.mark.parametrize("policy", ReplayPolicy)
def test_replay_on_idle_cores_takes_as_long_as_the_longest_run(policy: ReplayPolicy) -> None:
    runs = sample_runs(load_agent_runs("mini-swe-agent"), 4, seed=1)
    result = replay(agent_workload(runs), policy, nodes=1, cores=8)
    assert result.end_s == pytest.approx(max(run.length_s + (run.verify_s or 0.0) for run in runs), rel=0.05)


def test_trajectories_without_pods_do_not_wait_for_the_life_of_others() -> None:
    workload = agent_workload(sample_runs(load_agent_runs("mini-swe-agent"), 16, seed=1))
    static, tangram = (
        replay(workload, policy, nodes=1, cores=2).end_s for policy in (ReplayPolicy.STATIC, ReplayPolicy.TANGRAM)
    )
    assert tangram < 0.5 * static
