"""Test the workloads of the paper's site against its published means."""

from statistics import fmean

import pytest

from arl_sim.workload import ResourceKind
from arl_sim.workloads.paper_site import TEACHERS, SiteWorkload, site_cluster, site_workload


def test_coding_environment_is_in_use_as_long_as_published() -> None:
    trajectories = site_workload(SiteWorkload.CODING, 1, batch=400).trajectories
    turns = [turn for each in trajectories for turn in each.actions]
    run_s, think_s = sum(turn.work.fastest_s for turn in turns), sum(turn.think_s for turn in turns)
    assert fmean(turn.work.fastest_s for turn in turns) == pytest.approx(0.975, rel=0.05)
    assert run_s / (run_s + think_s) == pytest.approx(0.47, abs=0.02)


@pytest.mark.parametrize("workload", [SiteWorkload.MOPD, SiteWorkload.DEEPSEARCH])
def test_each_trajectory_ends_with_one_score(workload: SiteWorkload) -> None:
    for trajectory in site_workload(workload, 1, batch=50).trajectories:
        kinds = [turn.work.resource_kind for turn in trajectory.actions]
        assert kinds.count(ResourceKind.GPU) == 1
        assert kinds[-1] is ResourceKind.GPU


def test_site_has_the_published_nodes() -> None:
    assert site_cluster(SiteWorkload.CODING).cores == 15 * 256
    assert site_cluster(SiteWorkload.MOPD).gpus == 5 * 8
    assert site_cluster(SiteWorkload.MOPD, gpus=10).gpu_nodes == (8, 2)
    assert len(TEACHERS) == 9


def test_same_seed_gives_the_same_workload() -> None:
    first, second = (site_workload(SiteWorkload.CODING, 7, batch=3) for _ in range(2))
    assert first.trajectories == second.trajectories
