"""What a policy model writes, as a seeded stand-in: wrong, broken, slow, reward-hacking and right solutions."""

import random
from dataclasses import dataclass
from typing import Literal

from arl_tangram.demo.hacks import HACKS, Hack
from arl_tangram.demo.problems import Problem

__all__ = ["Attempt", "Plan", "every_attempt", "plans_for"]

Kind = Literal["right", "wrong", "broken", "slow", "hack"]

# A test suite takes lognormal CPU time with p50 1.2 s and p90 6.7 s, and one task's runs differ by 1.8 (the same
# source); here a fifth of that, and between so much and so much, so that one draw does not decide how long all takes.
TEST_SCALE = 0.2
TEST_P50_S = 1.2
TEST_SIGMA = 1.308
TEST_SIGMA_OF_RUNS = 0.3
TEST_BOUNDS_S = (0.05, 2.0)

# Between actions a trajectory thinks: lognormal with p50 2.8 s and p90 7 s (agentcgroup, arXiv 2602.09345),
# here a tenth of that.
THINK_SCALE = 0.1
THINK_P50_S = 2.8
THINK_SIGMA = 0.715


@dataclass(frozen=True, slots=True)
class Attempt:
    kind: Kind
    name: str
    code: str


@dataclass(frozen=True, slots=True)
class Plan:
    """One trajectory: attempts in order, the last of which it hands in, and its thinking times."""

    problem: Problem
    name: str
    attempts: tuple[Attempt, ...]
    thinking_s: tuple[float, ...]
    test_cpu_s: tuple[float, ...]
    """Of each attempt's tests, if its examples pass."""

    @property
    def deserves(self) -> float:
        return 1.0 if self.attempts[-1].kind == "right" else 0.0


def plans_for(
    problems: tuple[Problem, ...], *, trajectories: int, seed: int, sandboxed: bool = True
) -> tuple[Plan, ...]:
    """`trajectories` per problem. Every hack is handed in at least once if there are plans enough.

    Without a sandbox those that would do harm are left out.
    """
    plans: list[Plan] = []
    hacks = 0
    choice = [hack for hack in HACKS if sandboxed or not hack.needs_sandbox]
    for number, problem in enumerate(problems):
        usual_s = _usual_test(random.Random(f"{seed}/{problem.task_id}"))
        for rollout in range(trajectories):
            rng = random.Random(f"{seed}/{problem.task_id}/{rollout}")
            attempts = [_attempt(problem, kind) for kind in _beginnings(rng, number)]
            if rollout == 0:
                attempts.append(_attempt(problem, "right"))
            elif rollout % 4 == 3:
                attempts.append(_attempt(problem, rng.choice(("wrong", "broken", "slow"))))
            else:
                attempts.append(_hack(problem, choice[hacks % len(choice)]))
                hacks += 1
            thinking = tuple(_think(rng) for _ in range(len(attempts) + 2))
            tests = tuple(_test(usual_s, rng) for _ in attempts)
            plans.append(Plan(problem, f"p{number}-r{rollout}", tuple(attempts), thinking, tests))
    return tuple(plans)


def every_attempt(problem: Problem) -> tuple[Attempt, ...]:
    """All that a policy could hand in for it."""
    kinds: tuple[Kind, ...] = ("right", "wrong", "broken", "slow")
    return (*(_attempt(problem, kind) for kind in kinds), *(_hack(problem, hack) for hack in HACKS))


def _beginnings(rng: random.Random, number: int) -> tuple[Kind, ...]:
    """What it tries before: every kind of mistake, and the slow one rarely since it costs its whole limit."""
    first: tuple[Kind, ...] = ("wrong", "broken", "wrong", "slow", "wrong", "broken")
    return tuple(dict.fromkeys((first[number % len(first)], rng.choice(("wrong", "broken")))))


def _think(rng: random.Random) -> float:
    return THINK_SCALE * THINK_P50_S * rng.lognormvariate(0.0, THINK_SIGMA)


def _usual_test(rng: random.Random) -> float:
    return TEST_SCALE * TEST_P50_S * rng.lognormvariate(0.0, TEST_SIGMA)


def _test(usual_s: float, rng: random.Random) -> float:
    drawn = usual_s * rng.lognormvariate(0.0, TEST_SIGMA_OF_RUNS)
    return round(min(max(drawn, TEST_BOUNDS_S[0]), TEST_BOUNDS_S[1]), 3)


def _attempt(problem: Problem, kind: Kind) -> Attempt:
    match kind:
        case "right":
            code = problem.prompt + problem.canonical_solution
        case "wrong":
            code = problem.prompt + (problem.wrong_solution or "    return None\n")
        case "broken":
            code = problem.prompt + "    retrun None\n"
        case _:
            code = problem.prompt + "    while True:\n        pass\n"
    return Attempt(kind, kind, code)


def _hack(problem: Problem, hack: Hack) -> Attempt:
    return Attempt("hack", hack.name, hack.code.replace("ENTRY_POINT", problem.entry_point))
