"""The paper's own site, simulated: its nodes, batch sizes and published means, under our policies and the baselines.

The published means are those of the paper, and everything else is assumed (`arl_sim.workloads.paper_site`). So the
table shows the order of the policies under these assumptions. It does not reproduce the paper's measurements.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from arl_core.policies.policy import FirstComeFirstServed, SchedulingPolicy
from arl_core.policies.reference import ReferencePolicy
from arl_core.policies.spar import SparPolicy
from arl_core.policies.static_pods import StaticPods
from arl_sim.cluster import CORE_MILLI, DemandMode, SimActionClasses, SimCluster
from arl_sim.duration_models import LearnedDurations
from arl_sim.engine import WorkloadSimulation
from arl_sim.results import SimStatistics, compute_statistics
from arl_sim.workloads.paper_site import TEACHERS, SiteWorkload, site_cluster, site_workload

__all__ = ["PAPER_SITE_RESULTS", "SiteBenchConfig", "run_paper_site", "site_table"]

PODS_16, UNLIMITED, FIXED_4, FIXED_16, REFERENCE, SPAR_M, TANGRAM = (
    "pods_16", "unlimited", "fixed_4", "fixed_16", "reference", "spar_m", "tangram",
)  # fmt: skip
EXCLUSIVE_36, REFERENCE_10, SHARED_9 = "exclusive_36", "reference_10", "shared_9"
JUDGE_EXCLUSIVE, JUDGE_SHARED = "exclusive", "shared"
CONTENDERS = {
    SiteWorkload.CODING: (PODS_16, UNLIMITED, FIXED_4, FIXED_16, REFERENCE, SPAR_M, TANGRAM),
    SiteWorkload.MOPD: (EXCLUSIVE_36, REFERENCE_10, SHARED_9),
    SiteWorkload.DEEPSEARCH: (JUDGE_EXCLUSIVE, JUDGE_SHARED),
}
"""Policies of each workload. `exclusive` devices run one action at a time, `shared` ones run batches."""
PAPER_SITE_RESULTS = {
    "coding_1280_s": {"execution": 0.975, "queue": 0.015, "overhead": 0.024},
    "coding_1536_s": {"execution": 1.206, "queue": 0.428, "overhead": 0.036},
    "mopd_2048_s": {"execution": 0.621, "queue": 0.081, "overhead": 0.201},
    "mopd_3072_s": {"execution": 0.705, "queue": 15.05, "overhead": 0.240},
    "coding_act_gain_over_kubernetes": {"256": 3.1, "1536": 27.7},
    "mopd_devices": {"static": 36, "elastic": 10},
}
"""Second-hand figures of arXiv 2603.13019. Its baseline is Kubernetes for cores and SGLang for devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteBenchConfig:
    seeds: tuple[int, ...] = (1, 2, 3)
    scale: float = 0.2
    """Fraction of the CPU nodes and of the batches of coding; whole nodes, as a simulation of all takes hours."""
    batches: Mapping[SiteWorkload, tuple[int, ...]]

    @classmethod
    def full(cls) -> "SiteBenchConfig":
        batches = {
            SiteWorkload.CODING: (256, 768, 1280, 1536),
            SiteWorkload.MOPD: (2048, 3072),
            SiteWorkload.DEEPSEARCH: (2048,),
        }
        return cls(batches=batches)

    @classmethod
    def short(cls) -> "SiteBenchConfig":
        batches = {SiteWorkload.CODING: (256,), SiteWorkload.MOPD: (128,), SiteWorkload.DEEPSEARCH: (64,)}
        return cls(seeds=(1,), scale=1 / 15, batches=batches)


@dataclass(frozen=True, slots=True)
class _SiteCase:
    workload: SiteWorkload
    batch: int
    contender: str
    seed: int
    scale: float

    @property
    def key(self) -> str:
        return f"site_{self.workload}_{self.batch}_{self.contender}"


def run_paper_site(
    config: SiteBenchConfig, report_progress: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the mean figures of each workload, batch and policy, and those of each seed."""
    cases = [
        _SiteCase(workload, batch, contender, seed, config.scale)
        for workload, batches in config.batches.items()
        for batch in sorted(batches, reverse=True)
        for contender in CONTENDERS[workload]
        for seed in config.seeds
    ]
    samples: dict[str, list[dict[str, float]]] = {}
    # A fork of a process with threads may hang; spawned processes import only this module.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=context) as pool:
        for case, found in zip(cases, pool.map(_run_case, cases), strict=True):
            samples.setdefault(case.key, []).append(asdict(found))
            report_progress(f"{case.key}, seed {case.seed}: ACT {found.act:.2f} s, step {found.step:.0f} s")
    figures: dict[str, float] = {}
    for key, each in samples.items():
        for name in ("act", "queue", "p99", "step"):
            figures[f"{key}_{name}_s"] = round(fmean(values[name] for values in each), 4)
    return figures, {"seeds": samples, "paper": PAPER_SITE_RESULTS}


def site_table(figures: Mapping[str, float], config: SiteBenchConfig) -> Iterator[str]:
    """Yield the lines of a table."""
    yield f"{'workload':12} {'batch':>6} {'policy':14} {'ACT s':>8} {'queue s':>8} {'p99 s':>8} {'step s':>8}"
    for workload, batches in config.batches.items():
        for batch in batches:
            for contender in CONTENDERS[workload]:
                key = f"site_{workload}_{batch}_{contender}"
                values = [figures[f"{key}_{name}_s"] for name in ("act", "queue", "p99", "step")]
                cells = " ".join(f"{value:8.2f}" for value in values)
                yield f"{workload:12} {batch:6} {contender:14} {cells}"


def _run_case(case: _SiteCase) -> SimStatistics:
    batch = max(1, round(case.batch * case.scale)) if case.workload is SiteWorkload.CODING else case.batch
    suite_cores = 4 if case.contender == FIXED_4 else 16
    workload = site_workload(case.workload, case.seed, batch=batch, suite_cores=suite_cores)
    cluster, durations = _cluster_for(case), LearnedDurations()
    classes = SimActionClasses(cluster, workload.services, _demand_mode(case.contender))
    return compute_statistics(
        WorkloadSimulation(workload, cluster, _policy_for(case.contender), classes, durations).run()
    )


def _cluster_for(case: _SiteCase) -> SimCluster:
    everything = site_cluster(case.workload, scale=case.scale)
    match case.contender:
        case "exclusive_36":
            return replace(everything, gpu_nodes=(), dedicated={teacher.name: 4 for teacher in TEACHERS})
        case "reference_10":
            return site_cluster(case.workload, gpus=10, scale=case.scale)
        case "shared_9":
            devices = {teacher.name: 1 for teacher in TEACHERS}
            return replace(everything, gpu_nodes=(), dedicated=devices, shared=frozenset(devices))
        case "exclusive":
            return replace(everything, gpu_nodes=(), dedicated={"judge": 4})
        case "shared":
            return replace(everything, gpu_nodes=(), dedicated={"judge": 4}, shared=frozenset({"judge"}))
    return everything


def _demand_mode(contender: str) -> DemandMode:
    if contender in (SPAR_M, REFERENCE, REFERENCE_10):
        return DemandMode.ELASTIC
    return DemandMode.SHARED if contender in (TANGRAM, SHARED_9, JUDGE_SHARED) else DemandMode.FIXED


def _policy_for(contender: str) -> SchedulingPolicy:
    match contender:
        case "pods_16" | "exclusive_36" | "exclusive":
            return StaticPods(16 * CORE_MILLI)
        case "unlimited":
            return StaticPods(16 * CORE_MILLI, is_unlimited=True)
        case "fixed_4" | "fixed_16":
            return FirstComeFirstServed()
        case "reference" | "reference_10":
            return ReferencePolicy()
    return SparPolicy(is_resizing=True)
