"""The quickstart's texts and views, and the demo's progress, from actions that are given."""

from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any
from uuid import UUID

import pytest
import typer
from rich.console import Console

from arl_bench.cli.demo_runs import no_sandbox
from arl_bench.demo.progress import RolloutProgress, can_animate
from arl_bench.demo.rollout import DemoRollout
from arl_bench.harness.bench_system import NoSandbox
from arl_bench.quickstart.agents import agents_claim, plan_agents
from arl_bench.quickstart.agents_view import AgentsView
from arl_bench.quickstart.programs import FIRST_PROGRAMS, ProgramRun, explain_run, reward_of
from arl_core.domain.states import ActionOutcome
from arl_tangram.cli.output import EXIT_NO_SANDBOX
from arl_wire.actions.action import Action
from support.conditions import eventually

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def an_action(plan: str = "p0-r0", *, created_s: float = 0.0, settled_s: float = 1.0, **fields: Any) -> Action:
    values = {
        "id": UUID(int=1),
        "task": "demo",
        "trajectory": f"run/{plan}",
        "kind": "exec",
        "state": "settled",
        "created_at": BEGIN + timedelta(seconds=created_s),
        "settled_at": BEGIN + timedelta(seconds=settled_s),
    }
    return Action.model_validate(values | fields)


def a_view() -> AgentsView:
    return AgentsView(plan_agents(4), cores=2)


def rendered(view: AgentsView) -> list[str]:
    console = Console(file=StringIO(), width=80)
    console.print(view.render())
    lines: list[str] = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return lines


class TestPrograms:
    @pytest.mark.parametrize(
        ("outcome", "reward"),
        [
            (ActionOutcome.OK, 1.0),
            (ActionOutcome.USER_ERROR, 0.0),
            (ActionOutcome.USER_TIMEOUT, 0.0),
            (ActionOutcome.LIMIT_EXCEEDED, 0.0),
            (ActionOutcome.INFRA_ERROR, None),
            (ActionOutcome.CANCELLED, None),
        ],
    )
    def test_reward_of_an_infrastructure_error_is_masked(self, outcome: ActionOutcome, reward: float | None) -> None:
        assert reward_of(an_action(outcome=outcome)) == reward

    @pytest.mark.parametrize("outcome", list(ActionOutcome))
    def test_explanation_names_outcome_and_reward_in_one_line(self, outcome: ActionOutcome) -> None:
        explained = explain_run(ProgramRun(FIRST_PROGRAMS[0], an_action(outcome=outcome, reason="node_lost")))
        assert explained.startswith(outcome)
        assert ("reward" in explained, len(explained) <= 66) == (True, True)


class TestAgentsView:
    def test_agents_wait_compute_think_and_end(self) -> None:
        view = a_view()
        view.update(
            [
                an_action("p0-r0", state="queued"),
                an_action("p0-r1", state="running", allocation={"cpu_milli": 1500}),
                an_action("p1-r0", state="running", kind="score"),
            ]
        )
        assert [row.split()[2] for row in rendered(view)[2:]] == ["waits", "computes", "is", "thinks"]
        assert view.line(3).endswith("1.5 of 2 cores; 1 compute, 1 wait, 1 think")

    def test_agent_that_has_ended_shows_its_reward_and_stays_so(self) -> None:
        view, plan = a_view(), plan_agents(4)[1]
        view.on_action(an_action(plan.name))
        view.on_rollout(DemoRollout(plan, reward=0.0))
        view.update([an_action(plan.name, state="running")])
        assert rendered(view)[3].split() == ["2", plan.problem.entry_point, "done", "1", "0", "reward", "hack"]

    def test_actions_of_others_change_nothing(self) -> None:
        view = a_view()
        view.update([an_action("other", state="queued"), an_action(state="queued", trajectory=None)])
        assert "4 think" in view.line(0)

    def test_view_fits_80_columns(self) -> None:
        view = AgentsView(plan_agents(64), cores=64)
        view.update([an_action(plan.name, state="queued") for plan in plan_agents(64)])
        assert max(len(line.rstrip()) for line in [*rendered(view), "   " + view.line(999)]) <= 80


def test_agents_claim_counts_thinking_without_cores_and_rewards() -> None:
    right, hack = (DemoRollout(plan, reward=plan.deserved_reward, ended_s=10.0) for plan in plan_agents(2))
    right.actions += [an_action(settled_s=2), an_action(created_s=1, settled_s=3), an_action(created_s=6, settled_s=7)]
    hack.actions.append(an_action(settled_s=9))
    assert agents_claim([right, hack], wall_s=10, cores=2) == (
        "2 agents shared 2 cores: 4 actions in 10 s. No cores were held while the models thought, 7 s in total."
        " 1 of 1 right solutions got reward 1; 1 of 1 reward hacks got 0."
    )


class TestProgress:
    async def test_file_gets_a_first_line_lines_in_between_and_a_last_line(self) -> None:
        console = Console(file=StringIO(), width=80)
        lines = lambda: console.file.getvalue().splitlines()  # type: ignore[attr-defined] # noqa: E731
        with RolloutProgress("one pod per rollout", 2, console, interval_s=0.01) as progress:
            assert lines() == ["one pod per rollout: starting a system, 2 rollouts"]
            progress.on_action(an_action())
            progress.on_rollout(DemoRollout(plan_agents(2)[0]))
            await eventually(lambda: any("1 of 2 rollouts done, 1 actions" in line for line in lines()))
        assert lines()[-1].endswith("1 of 2 rollouts done, 1 actions")

    def test_failed_run_has_no_last_line(self) -> None:
        console = Console(file=StringIO(), width=80)
        with pytest.raises(RuntimeError), RolloutProgress("Tangram", 2, console):
            raise RuntimeError
        assert len(console.file.getvalue().splitlines()) == 1  # type: ignore[attr-defined]

    def test_forced_colours_do_not_animate_a_file(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FORCE_COLOR", "1")
        assert not can_animate(Console(file=StringIO()))


def test_machine_without_a_sandbox_gets_an_exit_code_and_the_option_that_helps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(typer.Exit) as ended, no_sandbox():
        raise NoSandbox("no driver works on this machine")
    assert ended.value.exit_code == EXIT_NO_SANDBOX
    assert "--unsafe-local" in capsys.readouterr().err
