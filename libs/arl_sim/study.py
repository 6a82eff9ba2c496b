"""Studies of many simulations. A case is a value, so cases can run in other processes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

from arl_sim.bounds import BoundJob, lagrangian_bound_s
from arl_sim.cluster import DemandMode, SimActionClasses, SimCluster
from arl_sim.duration_models import LearnedDurations
from arl_sim.engine import WorkloadSimulation
from arl_sim.paper import STEPS, ComparedPolicy, PaperHardware, create_compared_policy, run_steps
from arl_sim.results import compute_statistics
from arl_sim.workloads.open_loop import bursts

__all__ = [
    "BOUND_ACTIONS",
    "BoundCase",
    "Figures",
    "HardwareSaving",
    "SimCase",
    "mean_figures",
    "run_bound_case",
    "run_case",
    "savings",
]

Figures = dict[str, float]

BOUND_ACTIONS = 240
BOUND_CORES = 64
TOLERANCE = 1.01
"""Allowed factor on the baseline figures; seeds differ by more."""
CPU_FRACTIONS = (0.25, 0.21875, 0.1875, 0.15625, 0.125)
GPU_FRACTIONS = (0.5, 5 / 12, 0.375, 1 / 3, 0.25)


@dataclass(frozen=True, slots=True)
class SimCase:
    contender: ComparedPolicy
    hardware: PaperHardware
    seed: int
    steps: int = STEPS


@dataclass(frozen=True, slots=True)
class BoundCase:
    """A case on one node with bursts of actions, after learning durations from an earlier trace."""

    contender: ComparedPolicy
    seed: int
    actions: int = BOUND_ACTIONS


@dataclass(frozen=True, slots=True)
class HardwareSaving:
    """The least hardware whose ACT and step time are no worse than those of static provisioning at full hardware."""

    hardware: PaperHardware
    act_s: float
    step_s: float


def run_case(case: SimCase) -> list[Figures]:
    """Return the figures of each step."""
    results = run_steps(case.contender, case.hardware, seed=case.seed, steps=case.steps)
    return [asdict(compute_statistics(result)) for result in results]


def run_bound_case(case: BoundCase) -> Figures:
    """Return the mean ACT of a case and its clairvoyant bound."""
    site = SimCluster(cpu_nodes=(BOUND_CORES,), gpu_nodes=(), api_calls=1)
    known = LearnedDurations()
    classes = SimActionClasses(site, {}, DemandMode.ELASTIC)
    policy = create_compared_policy(case.contender, PaperHardware(1.0, 1.0))
    trace = bursts(case.seed, actions=case.actions)
    for workload in (bursts(case.seed + 100, actions=2 * case.actions), trace):
        result = WorkloadSimulation(workload, site, policy, classes, known).run()
    act_s = compute_statistics(result).act
    jobs = [BoundJob(rollout.actions[0].work, rollout.starts_s) for rollout in trace.trajectories]
    return {"act": act_s, "bound": lagrangian_bound_s(jobs, BOUND_CORES, achieved_s=act_s)}


def savings(
    contender: ComparedPolicy,
    *,
    act_s: float,
    step_s: float,
    mean_of: Callable[[ComparedPolicy, PaperHardware], Figures],
) -> tuple[HardwareSaving | None, list[tuple[PaperHardware, Figures]]]:
    """Return the least hardware that keeps ACT and step time within tolerance, and everything that was tried.

    Devices are reduced first, then cores. If half of the devices is too few, all devices stay and only cores are
    reduced.
    """
    tried: list[tuple[PaperHardware, Figures]] = []

    def least(choices: Iterable[PaperHardware]) -> HardwareSaving | None:
        found = None
        for hardware in choices:
            figures = mean_of(contender, hardware)
            tried.append((hardware, figures))
            if figures["act"] > TOLERANCE * act_s or figures["step"] > TOLERANCE * step_s:
                break
            found = HardwareSaving(hardware, figures["act"], figures["step"])
        return found

    found = least(PaperHardware(CPU_FRACTIONS[0], gpu) for gpu in GPU_FRACTIONS)
    if found is None:
        return least(PaperHardware(cpu, 1.0) for cpu in (0.5, *CPU_FRACTIONS)), tried
    fewer = least(PaperHardware(cpu, found.hardware.gpu) for cpu in CPU_FRACTIONS[1:])
    return fewer or found, tried


def mean_figures(steps: Sequence[Figures]) -> Figures:
    """Return the mean of each figure over the steps."""
    return {name: sum(each[name] for each in steps) / len(steps) for name in steps[0]}
