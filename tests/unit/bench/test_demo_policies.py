"""Figures and chart of the policy comparison, computed from given actions."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from uuid import UUID

import pytest

from arl_bench.demo.attempts import plan_trajectories
from arl_bench.demo.plot import draw_policies
from arl_bench.demo.policies import PolicyRun, pod_cores_of, policy_figures, settings_of
from arl_bench.demo.problems import CodingProblem, bundled_problems
from arl_bench.demo.rollout import DemoRollout
from arl_wire.actions.action import Action

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def an_action(number: int, *, granted: float, settled: float, cpu_milli: int = 1000) -> Action:
    return Action.model_validate(
        {
            "id": UUID(int=number),
            "task": "demo",
            "kind": "exec",
            "state": "settled",
            "outcome": "ok",
            "allocation": {"cpu_milli": cpu_milli},
            "created_at": BEGIN,
            "granted_at": BEGIN + timedelta(seconds=granted),
            "started_at": BEGIN + timedelta(seconds=granted),
            "settled_at": BEGIN + timedelta(seconds=settled),
            "times": {"act_s": settled, "queue_s": granted, "run_s": settled - granted, "overhead_s": 0.0},
        }
    )


def a_run(policy: str, *, pod_cores: float | None) -> PolicyRun:
    """Return a run of two consecutive trajectories; the second pauses between its actions."""
    first, second = (
        DemoRollout(plan, reward=plan.deserved_reward, started_s=0.0, ended_s=ends)
        for plan, ends in zip(
            plan_trajectories(bundled_problems()[:1], trajectories=2, seed=0), (2.0, 8.0), strict=True
        )
    )
    first.actions.append(an_action(1, granted=0, settled=2))
    second.actions += [an_action(2, granted=2, settled=3), an_action(3, granted=6, settled=8)]
    return PolicyRun(policy, (first, second), wall_s=8.0, cores=2, pod_cores=pod_cores)


class TestPolicyFigures:
    def test_static_pod_reserves_cores_between_actions(self) -> None:
        figures = policy_figures([a_run("tangram", pod_cores=None), a_run("static", pod_cores=2.0)])
        assert figures["tangram_reserved_core_s"] == 5
        assert figures["static_reserved_core_s"] == 2 * 2 + 2 * 6

    def test_overcommitted_pods_reserve_used_cores_up_to_capacity(self) -> None:
        run = a_run("overcommitted", pod_cores=2.0)
        beside = [an_action(number, granted=0, settled=2, cpu_milli=2000) for number in (7, 8, 9)]
        run.rollouts[0].actions += beside
        assert run.reserved_core_s == pytest.approx(2 * 2 + 1 + 2)

    def test_policy_without_settled_actions_reports_zero_figures(self) -> None:
        run = a_run("static", pod_cores=2.0)
        for rollout in run.rollouts:
            rollout.actions.clear()
        figures = policy_figures([run])
        assert (figures["static_act_mean_s"], figures["static_reserved_core_s"]) == (0, 0)

    def test_figures_include_action_trajectory_and_step_times(self) -> None:
        figures = policy_figures([a_run("tangram", pod_cores=None)])
        assert figures["tangram_act_mean_s"] == pytest.approx((2 + 3 + 8) / 3, abs=1e-3)
        assert (figures["tangram_step_s"], figures["tangram_trajectory_mean_s"]) == (8, 5)
        assert figures["tangram_wrong_rewards"] == 0


class TestPodSizes:
    @pytest.mark.parametrize("trajectories", [3, 48, 96, 200])
    def test_shrunk_pods_of_all_trajectories_fit_at_once(self, trajectories: int) -> None:
        size = pod_cores_of("shrunk", cores=2, trajectories=trajectories)
        assert size is not None
        told = round(1000 * float(settings_of("shrunk", size)["TANGRAM_POD_CORES"]))
        assert told * trajectories <= 2000

    def test_caller_environment_variables_do_not_change_policy_settings(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TANGRAM_POLICY", "static")
        assert settings_of("tangram", None)["TANGRAM_POLICY"] == "spar_m"
        assert settings_of("fcfs", None)["TANGRAM_POLICY"] == "fcfs"


def test_chart_has_one_panel_per_policy(tmp_path: Path) -> None:
    runs = [a_run("tangram", pod_cores=None), a_run("static", pod_cores=2.0), a_run("overcommitted", pod_cores=2.0)]
    vector, raster = draw_policies(runs, tmp_path / "cores")
    assert vector.read_text().count('<g id="axes_') == 3
    assert raster.read_bytes().startswith(b"\x89PNG")


class TestSuiteProgram:
    """The trajectory's test suite, run without a sandbox because the solutions are the bundled ones."""

    @staticmethod
    def run(problem: CodingProblem, code: str, where: Path) -> int:
        (where / "solution.py").write_text(code)
        (where / "request.json").write_text(json.dumps({"entry_point": problem.entry_point, "cpu_s": 0.05}))
        (where / "suite.py").write_text(files("arl_bench.demo.programs").joinpath("suite.py").read_text())
        return subprocess.run([sys.executable, "suite.py"], cwd=where, capture_output=True, timeout=30).returncode

    def test_right_solution_passes_and_endless_solution_fails(self, tmp_path: Path) -> None:
        problem = bundled_problems()[0]
        assert self.run(problem, problem.prompt + problem.canonical_solution, tmp_path) == 0
        assert self.run(problem, problem.prompt + "    while True:\n        pass\n", tmp_path) == 1

    def test_solution_with_changing_answers_fails(self, tmp_path: Path) -> None:
        problem = bundled_problems()[0]
        seen = problem.canonical_solution.replace("return merged", "seen.append(1)\n    return merged + seen[3:]")
        assert seen != problem.canonical_solution
        assert self.run(problem, "seen = []\n" + problem.prompt + seen, tmp_path) == 1


def test_bundled_solution_passes_and_bundled_mistake_fails() -> None:
    for problem in bundled_problems():
        for body, right in ((problem.canonical_solution, True), (problem.wrong_solution or "    pass\n", False)):
            names: dict[str, object] = {}
            exec(problem.prompt + body, names)
            exec(problem.test, names)
            try:
                names["check"](names[problem.entry_point])  # type: ignore[operator]
                passed = True
            except (AssertionError, TypeError, IndexError, KeyError, ValueError):
                passed = False
            assert passed is right, problem.entry_point
