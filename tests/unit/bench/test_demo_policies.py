"""Figures and chart of the policy comparison, computed from given actions."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from io import StringIO
from pathlib import Path
from uuid import UUID

import pytest
from rich.console import Console

from arl_bench.demo.attempts import plan_trajectories
from arl_bench.demo.core_time import RolloutSpan, SpanKind, rollout_spans
from arl_bench.demo.plot import draw_policies
from arl_bench.demo.policies import PLAIN_NAMES, POLICIES, PolicyRun, pod_cores_of, policy_figures, settings_of
from arl_bench.demo.problems import CodingProblem, bundled_problems
from arl_bench.demo.report import comparison_claim, print_comparison, print_policy_times
from arl_bench.demo.rollout import DemoRollout
from arl_wire.actions.action import Action

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def an_action(number: int, *, granted: float, settled: float, created: float = 0.0, cpu_milli: int = 1000) -> Action:
    return Action.model_validate(
        {
            "id": UUID(int=number),
            "task": "demo",
            "kind": "exec",
            "state": "settled",
            "outcome": "ok",
            "allocation": {"cpu_milli": cpu_milli},
            "created_at": BEGIN + timedelta(seconds=created),
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

    @pytest.mark.parametrize("policy", ["overcommitted", "unlimited"])
    def test_pods_that_share_cores_reserve_used_cores_up_to_capacity(self, policy: str) -> None:
        run = a_run(policy, pod_cores=2.0)
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


class TestSpans:
    def test_pod_is_held_idle_between_its_actions(self) -> None:
        first, second = rollout_spans(a_run("static", pod_cores=2.0))
        assert first == [RolloutSpan(SpanKind.COMPUTING, 0, 2)]
        assert [(span.kind, span.start_s, span.end_s) for span in second] == [
            (SpanKind.WAITING, 0, 2),
            (SpanKind.COMPUTING, 2, 3),
            (SpanKind.HELD_IDLE, 3, 6),
            (SpanKind.COMPUTING, 6, 8),
        ]

    def test_rollout_without_a_pod_holds_no_cores_between_its_actions(self) -> None:
        run = a_run("tangram", pod_cores=None)
        run.rollouts[1].actions[1] = an_action(3, granted=6, settled=8, created=5)
        _, second = rollout_spans(run)
        assert [(span.kind, span.start_s, span.end_s) for span in second] == [
            (SpanKind.WAITING, 0, 2),
            (SpanKind.COMPUTING, 2, 3),
            (SpanKind.WAITING, 5, 6),
            (SpanKind.COMPUTING, 6, 8),
        ]

    def test_rollout_that_ends_first_is_the_first_row(self) -> None:
        run = a_run("static", pod_cores=2.0)
        turned = PolicyRun("static", run.rollouts[::-1], wall_s=8.0, cores=2, pod_cores=2.0)
        assert [row[-1].end_s for row in rollout_spans(turned)] == [2, 8]

    def test_run_without_actions_has_no_rows(self) -> None:
        run = a_run("static", pod_cores=2.0)
        for rollout in run.rollouts:
            rollout.actions.clear()
        assert rollout_spans(run) == []


class TestPicture:
    @pytest.mark.parametrize(
        ("policies", "axes"),
        [
            (("static", "tangram"), 2),
            (("tangram",), 1),
            (("fcfs",), 1),
            (("tangram", "fcfs", "static", "shrunk", "overcommitted", "unlimited"), 3),
        ],
    )
    def test_static_pods_and_tangram_have_panels_and_further_policies_bars(
        self, policies: tuple[str, ...], axes: int, tmp_path: Path
    ) -> None:
        runs = [a_run(policy, pod_cores=None if policy in ("tangram", "fcfs") else 2.0) for policy in policies]
        vector, raster = draw_policies(runs, tmp_path / "cores.of.two")
        assert (vector.name, raster.name) == ("cores.of.two.svg", "cores.of.two.png")
        assert vector.read_text().count('<g id="axes_') == axes
        assert raster.read_bytes().startswith(b"\x89PNG")


class TestReport:
    def test_claim_compares_static_pods_with_tangram_in_one_sentence(self) -> None:
        claim = comparison_claim(a_run("static", pod_cores=2.0), a_run("tangram", pod_cores=None))
        assert claim == (
            "Same 2 rollouts, same 2 cores: 8 s → 8 s; cores held 16 → 5 core-s; 1 kind of reward hack, 0 paid"
        )

    def test_claim_names_pods_without_limits_if_they_ran(self) -> None:
        static, ours, unlimited = (a_run(name, pod_cores=2.0) for name in ("static", "tangram", "unlimited"))
        assert "8 s → 8 s (pods without limits: 8 s); cores held" in comparison_claim(static, ours, unlimited)

    def test_tables_of_all_policies_fit_80_columns(self) -> None:
        console = Console(file=StringIO(), width=80)
        runs = [a_run(policy, pod_cores=2.0) for policy in POLICIES]
        print_comparison(console, runs)
        print_policy_times(console, runs)
        lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        assert max(map(len, lines)) <= 80
        assert not [line for line in lines if "…" in line]
        assert all(sum(name in line for line in lines) == 2 for name in PLAIN_NAMES.values())


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
