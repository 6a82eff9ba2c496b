"""The attempts of the demo's simulated policy."""

import re

from arl_bench.demo.attempts import plan_trajectories
from arl_bench.demo.hacks import REWARD_HACKS
from arl_bench.demo.problems import bundled_problems

BEYOND_ITSELF = re.compile(r"os\.kill|/workspace|/root|/home|/proc/1\b|os\.walk|os\.getppid")


def test_unsandboxed_demo_runs_only_self_contained_code() -> None:
    plans = plan_trajectories(bundled_problems(), trajectories=8, seed=0, sandboxed=False)
    assert not [a.name for plan in plans for a in plan.attempts if BEYOND_ITSELF.search(a.code)]
    assert len({plan.attempts[-1].name for plan in plans if plan.attempts[-1].kind == "hack"}) >= 12


def test_sandboxed_demo_tries_every_reward_hack() -> None:
    plans = plan_trajectories(bundled_problems(), trajectories=4, seed=0)
    assert {plan.attempts[-1].name for plan in plans if plan.attempts[-1].kind == "hack"} == {
        hack.name for hack in REWARD_HACKS
    }


def test_same_seed_gives_same_trajectory_plans() -> None:
    first, second, other = (plan_trajectories(bundled_problems(), trajectories=4, seed=seed) for seed in (1, 1, 2))
    assert first == second != other


def test_only_right_solution_deserves_a_reward() -> None:
    for plan in plan_trajectories(bundled_problems(), trajectories=4, seed=0):
        assert plan.deserved_reward == float(plan.attempts[-1].kind == "right")
