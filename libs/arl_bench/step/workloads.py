"""Seeded workloads of one training step: trajectories that think, then run commands with a given amount of CPU work.

Thinking times are a tenth of those of agents. The parameters are those of the experiments in which the policy was
found; `busy`, `overload` and `tail` differ in their load and in the spread of trajectory lengths.
"""

import math
import random
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["StepTurn", "StepWorkload", "StepWorkloadName", "earlier_pass", "floor_s", "make_workload"]

CORES = 2
"""Cores that a command with a parallel part can use."""
PROBLEMS, ROLLOUTS = 32, 2
PYTHON_START_S = 0.09
"""CPU time of the start of an interpreter, which each command of the demo has."""
EARLIER_PASS_RHO = 0.8
"""Correlation of the logarithms of the numbers of turns of a prompt's trajectories in two passes."""
GROUP = 4
"""Trajectories of one prompt; they share the class of their tests."""


class StepWorkloadName(StrEnum):
    """The workloads."""

    DEMO = "demo"  # bound by its work: 64 short trajectories start together
    BUSY = "busy"  # the cores are busy half of the time
    OVERLOAD = "overload"  # more than twice as many commands want a core as there are cores
    TAIL = "tail"  # few trajectories are much longer than the others


@dataclass(frozen=True, slots=True)
class StepTurn:
    """Thinking, and the command after it."""

    think_s: float
    cpu_s: float
    parallel_fraction: float
    """Fraction of the CPU time that two threads can share."""
    profile: str
    """Class of the command."""

    @property
    def fastest_s(self) -> float:
        """Return the run time of the command on idle cores."""
        return self.cpu_s * (1.0 - self.parallel_fraction + self.parallel_fraction / CORES)


StepWorkload = tuple[tuple[StepTurn, ...], ...]
"""The turns of each trajectory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _AgentShape:
    """The parameters of coding agents. Log-normal values are median, least and most."""

    trajectories: int
    mean_turns: float
    turns_sigma: float
    turns_limits: tuple[int, int]
    think_s: float
    shell_cpu_s: tuple[float, float, float]
    test_cpu_s: tuple[float, float, float]
    test_probability: float = 0.3


_SHAPES = {
    StepWorkloadName.BUSY: _AgentShape(
        trajectories=20,
        mean_turns=9,
        turns_sigma=0.4,
        turns_limits=(3, 20),
        think_s=0.55,
        shell_cpu_s=(0.018, 0.006, 0.3),
        test_cpu_s=(0.13, 0.04, 0.8),
    ),
    StepWorkloadName.OVERLOAD: _AgentShape(
        trajectories=16,
        mean_turns=8,
        turns_sigma=0.6,
        turns_limits=(2, 24),
        think_s=0.24,
        shell_cpu_s=(0.03, 0.008, 0.4),
        test_cpu_s=(0.22, 0.06, 1.3),
        test_probability=0.35,
    ),
    StepWorkloadName.TAIL: _AgentShape(
        trajectories=30,
        mean_turns=5.5,
        turns_sigma=1.0,
        turns_limits=(1, 36),
        think_s=0.24,
        shell_cpu_s=(0.02, 0.008, 0.4),
        test_cpu_s=(0.16, 0.05, 1.0),
    ),
}


def make_workload(name: StepWorkloadName, seed: int) -> StepWorkload:
    """Return the trajectories of one step. The same seed gives the same step."""
    if name is StepWorkloadName.DEMO:
        return _demo(seed, first_rollout=0)
    return tuple(turns for _, turns in _agents(name, seed))


def earlier_pass(name: StepWorkloadName, seed: int) -> StepWorkload:
    """Return an earlier step of the same prompts: trajectory n has the prompt of trajectory n of `make_workload`.

    Tests of a prompt take as long as in the step itself. Lengths have the correlation `EARLIER_PASS_RHO`; in the demo,
    they differ as two attempts at a problem do.
    """
    if name is StepWorkloadName.DEMO:
        return _demo(seed, first_rollout=ROLLOUTS)
    shape, chance = _SHAPES[name], random.Random(f"{name}/{seed}/earlier")
    spread, found = shape.turns_sigma, []
    for number, (test_median_s, turns) in enumerate(_agents(name, seed)):
        known = math.log(len(turns) / shape.mean_turns) / spread + spread / 2
        drawn = EARLIER_PASS_RHO * known + math.sqrt(1 - EARLIER_PASS_RHO**2) * chance.gauss(0.0, 1.0)
        count = _turn_count(shape, spread * drawn - spread * spread / 2)
        found.append(_agent_turns(chance, shape, count, test_median_s, number // GROUP))
    return tuple(found)


def floor_s(workload: StepWorkload, *, cores: int) -> float:
    """Return the length of the step that no policy can beat: its longest trajectory alone, or its work on all cores."""
    longest = max(sum(turn.think_s + turn.fastest_s for turn in turns) for turns in workload)
    return max(longest, sum(turn.cpu_s for turns in workload for turn in turns) / cores)


def _agents(name: StepWorkloadName, seed: int) -> list[tuple[float, tuple[StepTurn, ...]]]:
    """Return the median CPU time of the tests of each trajectory, and its turns."""
    shape, chance = _SHAPES[name], random.Random(f"{name}/{seed}")
    found, test_median_s = [], 0.0
    median_s, least_s, most_s = shape.test_cpu_s
    for number in range(shape.trajectories):
        if number % GROUP == 0:
            test_median_s = _lognormal(chance, median_s, 0.8, least_s * 1.5, most_s * 0.7)
        spread = shape.turns_sigma
        count = _turn_count(shape, chance.gauss(-spread * spread / 2, spread))
        found.append((test_median_s, _agent_turns(chance, shape, count, test_median_s, number // GROUP)))
    return found


def _turn_count(shape: _AgentShape, log_ratio: float) -> int:
    """Return the number of turns with this logarithm of its ratio to the mean, within the limits."""
    return min(max(round(shape.mean_turns * math.exp(log_ratio)), shape.turns_limits[0]), shape.turns_limits[1])


def _agent_turns(
    chance: random.Random, shape: _AgentShape, count: int, test_median_s: float, prompt_group: int
) -> tuple[StepTurn, ...]:
    turns = []
    for at in range(count):
        think_s = _lognormal(chance, shape.think_s, 0.6, shape.think_s * 0.3, shape.think_s * 5)
        if at == count - 1 or chance.random() < shape.test_probability:
            cpu_s = _lognormal(chance, test_median_s, 0.3, *shape.test_cpu_s[1:])
            fraction = 0.9 if chance.random() < 0.5 else 0.0
            turns.append(StepTurn(think_s, cpu_s, fraction, f"test-{prompt_group}"))
        else:
            cpu_s = _lognormal(chance, shape.shell_cpu_s[0], 0.9, *shape.shell_cpu_s[1:])
            turns.append(StepTurn(think_s, cpu_s, 0.0, "shell"))
    return tuple(turns)


def _demo(seed: int, *, first_rollout: int) -> StepWorkload:
    """Return trajectories of the shape of `tangram demo`: a few attempts with their tests, then the verdict."""
    found = []
    for problem in range(PROBLEMS):
        of_problem = random.Random(f"demo/{seed}/{problem}")
        usual_s = 0.24 * of_problem.lognormvariate(0.0, 1.308)
        for rollout in range(first_rollout, first_rollout + ROLLOUTS):
            chance = random.Random(f"demo/{seed}/{problem}/{rollout}")
            found.append(_demo_trajectory(chance, problem, rollout, usual_s))
    return tuple(found)


def _demo_trajectory(chance: random.Random, problem: int, rollout: int, usual_s: float) -> tuple[StepTurn, ...]:
    suite = f"suite-{problem}"

    def think_s() -> float:
        return 0.28 * chance.lognormvariate(0.0, 0.715)

    turns = [StepTurn(0.0, 0.01, 0.0, "list")]
    failures = 1 + (chance.random() < 0.67)
    for at in range(failures):
        is_slow = problem % 6 == 3 and at == 0
        cpu_s = PYTHON_START_S + (1.0 if is_slow else 0.03)
        turns.append(StepTurn(think_s(), cpu_s, 0.0, suite))
    full_s = min(max(usual_s * chance.lognormvariate(0.0, 0.3), 0.05), 2.0)
    passes = rollout % ROLLOUTS == 0 or chance.random() < 0.5
    turns.append(
        StepTurn(think_s(), PYTHON_START_S + full_s * 1.6, 0.9, suite)
        if passes
        else StepTurn(think_s(), PYTHON_START_S + 0.03, 0.0, suite)
    )
    turns.append(StepTurn(think_s(), 0.01, 0.0, "submit"))
    turns.append(StepTurn(0.0, PYTHON_START_S + 0.05, 0.0, "candidate"))
    turns.append(StepTurn(0.0, PYTHON_START_S + 0.03, 0.0, "judge"))
    return tuple(turns)


def _lognormal(chance: random.Random, median: float, sigma: float, least: float, most: float) -> float:
    return min(max(median * math.exp(chance.gauss(0.0, sigma)), least), most)
