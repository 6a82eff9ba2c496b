"""Many simulations for one answer. A case is a value, so that cases can run in other processes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

from arl_sim.bounds import Job, lagrangian_bound_s
from arl_sim.engine import Simulation
from arl_sim.expectations import Learnt
from arl_sim.open_loop import bursts
from arl_sim.paper import STEPS, Contender, Hardware, policy_of, run_steps
from arl_sim.results import statistics_of
from arl_sim.site import Asking, Classes, Site

__all__ = [
    "BOUND_ACTIONS",
    "BoundCase",
    "Case",
    "Figures",
    "Saving",
    "mean_figures",
    "run_bound_case",
    "run_case",
    "savings",
]

Figures = dict[str, float]

BOUND_ACTIONS = 240
BOUND_CORES = 64
AS_GOOD = 1.01
"""Times what is to be kept: seeds differ by more."""
LEAST_CPU = (0.25, 0.21875, 0.1875, 0.15625, 0.125)
LEAST_GPU = (0.5, 5 / 12, 0.375, 1 / 3, 0.25)


@dataclass(frozen=True, slots=True)
class Case:
    contender: Contender
    hardware: Hardware
    seed: int
    steps: int = STEPS


@dataclass(frozen=True, slots=True)
class BoundCase:
    """One node, actions that come in bursts, the durations of an earlier trace known."""

    contender: Contender
    seed: int
    actions: int = BOUND_ACTIONS


@dataclass(frozen=True, slots=True)
class Saving:
    """The least hardware on which ACT and step are no worse than those of static provisioning on all of it."""

    hardware: Hardware
    act_s: float
    step_s: float


def run_case(case: Case) -> list[Figures]:
    """A set of figures for each step."""
    results = run_steps(case.contender, case.hardware, seed=case.seed, steps=case.steps)
    return [asdict(statistics_of(result)) for result in results]


def run_bound_case(case: BoundCase) -> Figures:
    """Its mean ACT, and the clairvoyant bound of it."""
    site = Site(cpu_nodes=(BOUND_CORES,), gpu_nodes=(), api_calls=1)
    known = Learnt()
    classes = Classes(site, {}, Asking.ELASTIC)
    policy = policy_of(case.contender, Hardware(1.0, 1.0))
    trace = bursts(case.seed, actions=case.actions)
    for workload in (bursts(case.seed + 100, actions=2 * case.actions), trace):
        result = Simulation(workload, site, policy, classes, known).run()
    act_s = statistics_of(result).act
    jobs = [Job(rollout.turns[0].work, rollout.starts_s) for rollout in trace.rollouts]
    return {"act": act_s, "bound": lagrangian_bound_s(jobs, BOUND_CORES, reached_s=act_s)}


def savings(
    contender: Contender,
    *,
    act_s: float,
    step_s: float,
    mean_of: Callable[[Contender, Hardware], Figures],
) -> tuple[Saving | None, list[tuple[Hardware, Figures]]]:
    """Ever fewer devices as long as both are kept, then ever fewer cores; and what was tried.

    Where a half of the devices is too few already, all are kept and there are ever fewer cores.
    """
    tried: list[tuple[Hardware, Figures]] = []

    def least(choices: Iterable[Hardware]) -> Saving | None:
        found = None
        for hardware in choices:
            figures = mean_of(contender, hardware)
            tried.append((hardware, figures))
            if figures["act"] > AS_GOOD * act_s or figures["step"] > AS_GOOD * step_s:
                break
            found = Saving(hardware, figures["act"], figures["step"])
        return found

    found = least(Hardware(LEAST_CPU[0], gpu) for gpu in LEAST_GPU)
    if found is None:
        return least(Hardware(cpu, 1.0) for cpu in (0.5, *LEAST_CPU)), tried
    fewer = least(Hardware(cpu, found.hardware.gpu) for cpu in LEAST_CPU[1:])
    return fewer or found, tried


def mean_figures(steps: Sequence[Figures]) -> Figures:
    """The mean of each figure over some steps."""
    return {name: sum(each[name] for each in steps) / len(steps) for name in steps[0]}
