"""Test the workloads of `tangram bench step`."""

import math
import subprocess
from statistics import correlation

import pytest

from arl_bench.step.run import burn_script
from arl_bench.step.workloads import StepTurn, StepWorkloadName, earlier_pass, floor_s, make_workload


@pytest.mark.parametrize(
    ("name", "trajectories"),
    [
        (StepWorkloadName.DEMO, 64),
        (StepWorkloadName.BUSY, 20),
        (StepWorkloadName.OVERLOAD, 16),
        (StepWorkloadName.TAIL, 30),
    ],
)
def test_seed_gives_the_same_step(name: StepWorkloadName, trajectories: int) -> None:
    step = make_workload(name, 1)
    assert len(step) == trajectories
    assert step == make_workload(name, 1)
    assert step != make_workload(name, 2)
    assert all(turn.cpu_s > 0 and turn.think_s >= 0 for turns in step for turn in turns)


def test_floor_is_the_longest_trajectory_or_all_work() -> None:
    long = (StepTurn(5.0, 1.0, 0.0, "x"),)
    assert floor_s((long, (StepTurn(0.0, 1.0, 0.0, "x"),)), cores=2) == 6.0
    assert floor_s((long, *[(StepTurn(0.0, 4.0, 0.0, "x"),)] * 5), cores=2) == 10.5


def test_parallel_part_ends_sooner_on_idle_cores() -> None:
    assert StepTurn(0.0, 2.0, 0.9, "x").fastest_s == pytest.approx(2.0 * (0.1 + 0.45))


@pytest.mark.parametrize("fraction", [0.0, 0.9])
def test_script_runs_all_loops_of_its_turn(fraction: float) -> None:
    script = burn_script(StepTurn(0.0, 1.002, fraction, "x"), loops_per_s=1000)
    counted = script.replace("i=$((i+1))", "i=$((i+1)); echo")
    done = subprocess.run(["sh", "-c", counted], capture_output=True, check=True)
    assert done.stdout.count(b"\n") == 1000


@pytest.mark.parametrize("name", list(StepWorkloadName))
def test_earlier_pass_has_the_same_prompts_and_other_lengths(name: StepWorkloadName) -> None:
    step, earlier = make_workload(name, 1), earlier_pass(name, 1)
    assert earlier == earlier_pass(name, 1)
    assert len(earlier) == len(step)
    assert earlier != step


def test_lengths_of_both_passes_are_correlated() -> None:
    pairs = [
        (math.log(len(now)), math.log(len(before)))
        for seed in range(40)
        for now, before in zip(
            make_workload(StepWorkloadName.TAIL, seed), earlier_pass(StepWorkloadName.TAIL, seed), strict=True
        )
    ]
    assert 0.7 < correlation(*zip(*pairs, strict=True)) < 0.85
