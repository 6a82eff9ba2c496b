"""The steps of `bench step` in the simulator, to compare its ratios with those of real runs of the same seeds."""

from collections.abc import Iterable, Mapping
from statistics import fmean, median, quantiles

from arl_bench.step.workloads import CORES, StepWorkload, StepWorkloadName, earlier_pass, make_workload
from arl_core.domain.model import ResizeSupport
from arl_sim.cluster import DemandMode, SimActionClasses, SimCluster
from arl_sim.duration_models import LearnedDurations
from arl_sim.engine import SimOverheads, WorkloadSimulation
from arl_sim.replay import ReplayPolicy, create_policy
from arl_sim.step_awareness import SimStepAwareness
from arl_sim.workload import ActionWork, ResourceKind, SimTrajectory, SimWorkload, TrajectoryAction

__all__ = ["SIMULATED_CONTENDERS", "simulated_ratios"]

START_S = 0.012
"""Seconds from a grant to the first instruction of a command, as measured in steps on two busy cores."""
SIMULATED_CONTENDERS: Mapping[str, ReplayPolicy] = {
    "unlimited": ReplayPolicy.UNLIMITED,
    "tangram": ReplayPolicy.TANGRAM,
    "tangram_hints": ReplayPolicy.TANGRAM_HINTS,
}
"""The contenders that the simulator models."""


def simulated_ratios(
    name: StepWorkloadName, seeds: Iterable[int], contenders: Iterable[str], *, cores: int
) -> dict[str, dict[str, float]]:
    """Return the median ratios of `act`, `p99` and `step` to `unlimited` over the seeds, by contender."""
    found: dict[str, dict[str, list[float]]] = {}
    chosen = [each for each in contenders if each in SIMULATED_CONTENDERS and each != "unlimited"]
    for seed in seeds:
        base = _simulate(name, seed, ReplayPolicy.UNLIMITED, cores)
        for contender in chosen:
            figures = _simulate(name, seed, SIMULATED_CONTENDERS[contender], cores)
            for key, value in figures.items():
                found.setdefault(contender, {}).setdefault(key, []).append(value / base[key])
    return {contender: {key: median(ratios) for key, ratios in each.items()} for contender, each in found.items()}


def _simulate(name: StepWorkloadName, seed: int, policy: ReplayPolicy, cores: int) -> dict[str, float]:
    """Simulate an earlier pass, from which the classes are learnt, and then the step."""
    is_pod = policy is ReplayPolicy.UNLIMITED
    cluster = SimCluster(cpu_nodes=(cores,), gpu_nodes=(), api_calls=1)
    classes = SimActionClasses(cluster, {}, DemandMode.FIXED if is_pod else DemandMode.SHARED)
    durations, hinted_cores = LearnedDurations(), float(cores) if policy is ReplayPolicy.TANGRAM_HINTS else 0.0
    for step in (earlier_pass(name, seed), make_workload(name, seed)):
        result = WorkloadSimulation(
            _to_simulation(step),
            cluster,
            create_policy(policy),
            classes,
            durations,
            overheads=SimOverheads(start_s=START_S, pod_start_s=START_S),
            steps=SimStepAwareness(hinted_cores),
        ).run()
    acts = [record.act_s for record in result.records]
    step_s = max(record.ended for record in result.records)
    return {"act": fmean(acts), "p99": quantiles(acts, n=100)[98], "step": step_s}


def _to_simulation(step: StepWorkload) -> SimWorkload:
    return SimWorkload(
        tuple(
            SimTrajectory(
                "step",
                tuple(
                    TrajectoryAction(
                        turn.think_s,
                        ActionWork(
                            cls=turn.profile,
                            resource_kind=ResourceKind.CPU,
                            seconds=turn.cpu_s,
                            parallel_fraction=turn.parallel_fraction,
                            choices=tuple(range(1, CORES + 1)) if turn.parallel_fraction else (1,),
                            resizable=ResizeSupport.NONE,
                        ),
                    )
                    for turn in turns
                ),
            )
            for turns in step
        )
    )
