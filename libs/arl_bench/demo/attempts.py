"""A seeded substitute for a policy model: wrong, broken, slow, reward-hacking and right solutions."""

import random
from dataclasses import dataclass
from typing import Literal

from arl_bench.demo.hacks import REWARD_HACKS, RewardHack
from arl_bench.demo.problems import CodingProblem

__all__ = ["CodeAttempt", "TrajectoryPlan", "all_attempts", "plan_trajectories"]

AttemptKind = Literal["right", "wrong", "broken", "slow", "hack"]

# A test suite takes lognormal CPU time with p50 1.2 s and p90 6.7 s; the runs of one task differ by a factor of 1.8
# (the same source as below). The demo uses a fifth of that, limited to TEST_BOUNDS_S, so that no single draw
# determines the total time.
TEST_SCALE = 0.2
TEST_P50_S = 1.2
TEST_SIGMA = 1.308
TEST_SIGMA_OF_RUNS = 0.3
TEST_BOUNDS_S = (0.05, 2.0)

# The thinking time between actions is lognormal with p50 2.8 s and p90 7 s (agentcgroup, arXiv 2602.09345). The demo
# uses a tenth of that.
THINK_SCALE = 0.1
THINK_P50_S = 2.8
THINK_SIGMA = 0.715


@dataclass(frozen=True, slots=True)
class CodeAttempt:
    kind: AttemptKind
    name: str
    code: str


@dataclass(frozen=True, slots=True)
class TrajectoryPlan:
    """The plan of one trajectory: thinking times and attempts in order. The last attempt is submitted."""

    problem: CodingProblem
    name: str
    attempts: tuple[CodeAttempt, ...]
    thinking_s: tuple[float, ...]
    test_cpu_s: tuple[float, ...]
    """CPU seconds of each attempt's tests, if its examples pass."""

    @property
    def deserved_reward(self) -> float:
        return 1.0 if self.attempts[-1].kind == "right" else 0.0


def plan_trajectories(
    problems: tuple[CodingProblem, ...], *, trajectories: int, seed: int, sandboxed: bool = True
) -> tuple[TrajectoryPlan, ...]:
    """Plan `trajectories` per problem. Every hack is submitted at least once if there are enough plans.

    If there is no sandbox, harmful hacks are left out.
    """
    plans: list[TrajectoryPlan] = []
    hacks = 0
    choice = [hack for hack in REWARD_HACKS if sandboxed or not hack.needs_sandbox]
    for number, problem in enumerate(problems):
        usual_s = _draw_usual_test_s(random.Random(f"{seed}/{problem.task_id}"))
        for rollout in range(trajectories):
            rng = random.Random(f"{seed}/{problem.task_id}/{rollout}")
            attempts = [_make_attempt(problem, kind) for kind in _first_kinds(rng, number)]
            if rollout == 0:
                attempts.append(_make_attempt(problem, "right"))
            elif rollout % 4 == 3:
                attempts.append(_make_attempt(problem, rng.choice(("wrong", "broken", "slow"))))
            else:
                attempts.append(_make_hack(problem, choice[hacks % len(choice)]))
                hacks += 1
            thinking = tuple(_draw_thinking_s(rng) for _ in range(len(attempts) + 2))
            tests = tuple(_draw_test_s(usual_s, rng) for _ in attempts)
            plans.append(TrajectoryPlan(problem, f"p{number}-r{rollout}", tuple(attempts), thinking, tests))
    return tuple(plans)


def all_attempts(problem: CodingProblem) -> tuple[CodeAttempt, ...]:
    """Return every attempt that a policy could submit for a problem."""
    kinds: tuple[AttemptKind, ...] = ("right", "wrong", "broken", "slow")
    return (*(_make_attempt(problem, kind) for kind in kinds), *(_make_hack(problem, hack) for hack in REWARD_HACKS))


def _first_kinds(rng: random.Random, number: int) -> tuple[AttemptKind, ...]:
    """Return the kinds of the first attempts. "slow" is rare because it costs its whole time limit."""
    first: tuple[AttemptKind, ...] = ("wrong", "broken", "wrong", "slow", "wrong", "broken")
    return tuple(dict.fromkeys((first[number % len(first)], rng.choice(("wrong", "broken")))))


def _draw_thinking_s(rng: random.Random) -> float:
    return THINK_SCALE * THINK_P50_S * rng.lognormvariate(0.0, THINK_SIGMA)


def _draw_usual_test_s(rng: random.Random) -> float:
    return TEST_SCALE * TEST_P50_S * rng.lognormvariate(0.0, TEST_SIGMA)


def _draw_test_s(usual_s: float, rng: random.Random) -> float:
    drawn = usual_s * rng.lognormvariate(0.0, TEST_SIGMA_OF_RUNS)
    return round(min(max(drawn, TEST_BOUNDS_S[0]), TEST_BOUNDS_S[1]), 3)


def _make_attempt(problem: CodingProblem, kind: AttemptKind) -> CodeAttempt:
    match kind:
        case "right":
            code = problem.prompt + problem.canonical_solution
        case "wrong":
            code = problem.prompt + (problem.wrong_solution or "    return None\n")
        case "broken":
            code = problem.prompt + "    retrun None\n"
        case _:
            code = problem.prompt + "    while True:\n        pass\n"
    return CodeAttempt(kind, kind, code)


def _make_hack(problem: CodingProblem, hack: RewardHack) -> CodeAttempt:
    return CodeAttempt("hack", hack.name, hack.code.replace("ENTRY_POINT", problem.entry_point))
