"""The site and the workloads of the paper (arXiv 2603.13019), as far as they are published.

The paper publishes 15 CPU nodes with 256 cores, 5 GPU nodes with 8 devices, the batch sizes and 9 teachers. It also
publishes three means: an environment is in use for 47 % of its trajectory, a coding action executes for 0.98 s, and a
teacher for 0.62 s. All else is assumed, such as the number of turns, the work of a test suite and the size of weights.
"""

import math
from enum import StrEnum

import numpy as np

from arl_core.domain.model import ExclusiveService
from arl_sim.cluster import SimCluster
from arl_sim.workload import ActionWork, ResourceKind, SimTrajectory, SimWorkload, TrajectoryAction

__all__ = ["CORES_PER_NODE", "CPU_NODES", "TEACHERS", "SiteWorkload", "site_cluster", "site_workload"]

CPU_NODES, CORES_PER_NODE = 15, 256
GPU_NODES, GPUS_PER_NODE = 5, 8
API_CALLS = 256
"""Concurrent calls of the search API; an assumption."""
STARTS_WITHIN_S = 20.0
"""Seconds within which the trajectories of a batch begin; an assumption."""

COMMANDS = 20
"""Mean number of commands of a coding trajectory; an assumption."""
COMMAND_S = 0.5
SUITE_S = 66.0
"""Mean CPU-seconds of the test suite that gives the reward. On 16 cores it takes 10.3 s, and the mean execution is then
0.98 s as published.
"""
SUITE_FRACTION = 0.9
SUITE_CHOICES = (1, 2, 4, 8, 16)
CODING_THINK_S = 1.12
"""Mean thinking time: with 0.98 s of execution, the environment is in use for 47 % of the time."""

SCORE_S = 0.62
GENERATION_S = 100.0
"""Median seconds until an answer is complete and its teacher scores it; an assumption."""
SEARCHES = 12
SEARCH_S = 0.8
SEARCH_THINK_S = 8.0


class SiteWorkload(StrEnum):
    """The workloads of the paper."""

    CODING = "coding"
    MOPD = "mopd"  # distillation from several teachers
    DEEPSEARCH = "deepsearch"


def _service(name: str, size_gb: float) -> ExclusiveService:
    return ExclusiveService(name, fixed_s=0.2, device_s=size_gb / 25.0)


TEACHERS = tuple(_service(f"teacher{number}", 20.0 + 5.0 * number) for number in range(9))
"""Teachers with weights of 20 to 60 GB, restored at 25 GB/s; sizes and rate are assumptions."""
JUDGE = _service("judge", 60.0)


def site_cluster(workload: SiteWorkload, *, gpus: int | None = None, scale: float = 1.0) -> SimCluster:
    """Return the paper's site, or a fraction of its CPU nodes.

    Args:
        workload: The workload, which decides whether devices are needed.
        gpus: Devices that all services use in turn; None for all 40.
        scale: Fraction of the CPU nodes, for short runs.
    """
    nodes = max(1, round(CPU_NODES * scale))
    devices = 0 if workload is SiteWorkload.CODING else (GPU_NODES * GPUS_PER_NODE if gpus is None else gpus)
    gpu_nodes = (GPUS_PER_NODE,) * (devices // GPUS_PER_NODE)
    rest = tuple(size for size in (4, 2, 1) if devices % GPUS_PER_NODE & size)
    return SimCluster(cpu_nodes=(CORES_PER_NODE,) * nodes, gpu_nodes=gpu_nodes + rest, api_calls=API_CALLS)


def site_workload(name: SiteWorkload, seed: int, *, batch: int, suite_cores: int = 16) -> SimWorkload:
    """Return one step with `batch` trajectories. `suite_cores` is the number of cores under a fixed demand."""
    draw = _SiteSampler(seed, suite_cores)
    make = {
        SiteWorkload.CODING: draw.coding,
        SiteWorkload.MOPD: draw.distillation,
        SiteWorkload.DEEPSEARCH: draw.search,
    }[name]
    services = (JUDGE,) if name is SiteWorkload.DEEPSEARCH else TEACHERS
    return SimWorkload(tuple(make() for _ in range(batch)), {service.name: service for service in services})


class _SiteSampler:
    def __init__(self, seed: int, suite_cores: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._suite_cores = suite_cores
        popularity = 1 / np.arange(1, len(TEACHERS) + 1) ** 0.8
        self._popularity = popularity / popularity.sum()

    def coding(self) -> SimTrajectory:
        count = int(np.clip(self._lognormal(COMMANDS, 0.5), 4, 80))
        turns = [TrajectoryAction(self._lognormal(CODING_THINK_S, 0.7), self._command()) for _ in range(count)]
        turns.append(TrajectoryAction(self._lognormal(CODING_THINK_S, 0.7), self._suite()))
        return SimTrajectory("ai-coding", tuple(turns), self._start_s())

    def distillation(self) -> SimTrajectory:
        think_s = float(GENERATION_S * np.exp(self._rng.normal(0.0, 0.5)))
        teacher = TEACHERS[int(self._rng.choice(len(TEACHERS), p=self._popularity))]
        return SimTrajectory("mopd", (TrajectoryAction(think_s, self._score(teacher)),), self._start_s())

    def search(self) -> SimTrajectory:
        count = int(np.clip(self._lognormal(SEARCHES, 0.5), 2, 50))
        turns = [TrajectoryAction(self._lognormal(SEARCH_THINK_S, 0.6), self._call()) for _ in range(count)]
        turns.append(TrajectoryAction(self._lognormal(SEARCH_THINK_S, 0.6), self._score(JUDGE)))
        return SimTrajectory("deep-search", tuple(turns), self._start_s())

    def _command(self) -> ActionWork:
        return ActionWork(cls="command", resource_kind=ResourceKind.CPU, seconds=self._lognormal(COMMAND_S, 1.0))

    def _suite(self) -> ActionWork:
        return ActionWork(
            cls="suite",
            resource_kind=ResourceKind.CPU,
            seconds=self._lognormal(SUITE_S, 0.6),
            parallel_fraction=SUITE_FRACTION,
            choices=SUITE_CHOICES,
            fixed_units=self._suite_cores,
        )

    def _score(self, service: ExclusiveService) -> ActionWork:
        return ActionWork(
            cls=service.name,
            resource_kind=ResourceKind.GPU,
            seconds=self._lognormal(SCORE_S, 0.4),
            service=service.name,
        )

    def _call(self) -> ActionWork:
        return ActionWork(cls="search", resource_kind=ResourceKind.API, seconds=self._lognormal(SEARCH_S, 0.7))

    def _start_s(self) -> float:
        return float(self._rng.uniform(0.0, STARTS_WITHIN_S))

    def _lognormal(self, mean: float, sigma: float) -> float:
        return float(mean * math.exp(self._rng.normal(-sigma * sigma / 2, sigma)))
