"""What was recorded, run again."""

from dataclasses import replace

import pytest

from arl_sim.engine import START_S
from arl_sim.sizing import DoesNotFit, Hardware, simulate
from arl_sim.trace import Recorded, TraceError, lines_of, read_trace, workload_of
from arl_sim.workload import Need

ONE_NODE = Hardware(nodes=1, cores=8, gpus=0, calls=4, pod_cores=4)


def a_recorded(submitted_s: float = 1000.0, *, run_s: float = 2.0, trajectory: str | None = "t1") -> Recorded:
    """On one core; it could have had 8."""
    return Recorded(
        task="ai-coding",
        trajectory=trajectory,
        alike="suite",
        submitted_s=submitted_s,
        ended_s=submitted_s + run_s,
        run_s=run_s,
        had={"cpu_milli": 1000, "memory_mib": 512},
        demand={"cpu_milli": 1000, "memory_mib": 512},
        most=8000,
        step=1000,
        parallel_fraction=0.9,
    )


def test_what_was_written_is_read_again() -> None:
    actions = [a_recorded(), a_recorded(1010.0, trajectory=None)]
    assert read_trace(lines_of(actions)) == actions


def test_a_trajectory_thinks_as_long_as_it_did() -> None:
    (rollout,) = workload_of([a_recorded(1005.0), a_recorded(1000.0)]).rollouts
    assert [turn.think_s for turn in rollout.turns] == [0.0, 3.0]


def test_what_has_no_trajectory_comes_when_it_came() -> None:
    rollouts = workload_of([a_recorded(1000.0, trajectory=None), a_recorded(1004.0, trajectory=None)]).rollouts
    assert [rollout.starts_s for rollout in rollouts] == [0.0, 4.0]


def test_more_cores_make_it_as_fast_as_was_declared() -> None:
    (record,) = simulate(workload_of([a_recorded(run_s=8.0)]), "spar", ONE_NODE).records
    assert record.act_s == pytest.approx(START_S + 8.0 * (0.1 + 0.9 / 8))


def test_what_ran_on_several_cores_is_slower_on_one() -> None:
    on_eight = replace(a_recorded(run_s=1.0), had={"cpu_milli": 8000})
    (record,) = simulate(workload_of([on_eight]), "fcfs", ONE_NODE).records
    assert record.act_s == pytest.approx(START_S + 1.0 / (0.1 + 0.9 / 8))


def test_a_score_is_a_call() -> None:
    score = replace(a_recorded(), had={"slots:minilm": 1}, demand={"slots:minilm": 1}, most=0)
    (rollout,) = workload_of([score]).rollouts
    assert rollout.turns[0].work.need is Need.API


def test_what_fits_on_no_node_is_said_before_it_waits_for_ever() -> None:
    wide = replace(a_recorded(), demand={"cpu_milli": 16000}, most=16000)
    with pytest.raises(DoesNotFit, match="16 cores"):
        simulate(workload_of([wide]), "spar_m", ONE_NODE)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "line 1 is no JSON"),
        (["{}"], "no tangram-trace"),
        ([*lines_of([]), "[]"], "line 2 is no object"),
        ([*lines_of([]), "{}"], "line 2"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_line(lines: list[str], said: str) -> None:
    with pytest.raises(TraceError, match=said):
        read_trace(lines)
