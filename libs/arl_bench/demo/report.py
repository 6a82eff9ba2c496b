"""Results of the demo: figures for programs, tables for people."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean, quantiles
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from arl_bench.demo.policies import PLAIN_NAMES, PolicyRun, policy_figures
from arl_bench.demo.rollout import DemoRollout
from arl_wire.actions.action import Action

__all__ = [
    "ISOLATION_CHECKS",
    "comparison_claim",
    "demo_figures",
    "print_comparison",
    "print_policy_times",
    "print_results",
    "wrong_rewards",
]

SCORE_NAMES = {"similarity": "likeness", "relevance": "relevance", "classifier": "quality"}
"""Name of each kind of score: likeness to the reference, relevance to the problem, quality."""
ISOLATION_CHECKS = ("files", "net_isolation", "seccomp", "kill_tree")


def demo_figures(rollouts: Sequence[DemoRollout], *, wall_s: float) -> dict[str, float]:
    """Return a flat mapping of figures. Times are in seconds. `sandbox_enforced` is 1 if every result reports it."""
    actions = [action for rollout in rollouts for action in rollout.actions]
    hacks = [rollout for rollout in rollouts if rollout.plan.attempts[-1].kind == "hack"]
    acts = sorted(action.times.act_s or 0.0 for action in actions)
    cuts = quantiles(acts, n=100) if len(acts) > 1 else [0.0] * 99
    return {
        "trajectories": len(rollouts),
        "rewarded": sum(rollout.reward == 1.0 for rollout in rollouts),
        "wrong_rewarded": sum(rollout.reward == 1.0 and rollout.plan.deserved_reward == 0.0 for rollout in rollouts),
        "right_unrewarded": sum(rollout.reward != 1.0 and rollout.plan.deserved_reward == 1.0 for rollout in rollouts),
        "masked": sum(rollout.reward is None for rollout in rollouts),
        "hacks_tried": len({rollout.plan.attempts[-1].name for rollout in hacks}),
        "hack_trajectories": len(hacks),
        "hacks_rewarded": sum(rollout.reward == 1.0 for rollout in hacks),
        "sandbox_enforced": int(bool(actions) and all(_is_isolated(action) for action in actions)),
        "scored": sum(bool(rollout.model_scores) for rollout in rollouts),
        "reward_services": len(set().union(*(rollout.model_scores for rollout in rollouts))),
        **_score_means(rollouts),
        "actions": len(actions),
        "act_mean_s": round(fmean(acts), 4) if acts else 0.0,
        "act_p50_s": round(cuts[49], 4),
        "act_p99_s": round(cuts[98], 4),
        "queue_mean_s": _mean(actions, "queue_s"),
        "run_mean_s": _mean(actions, "run_s"),
        "overhead_mean_s": _mean(actions, "overhead_s"),
        "cpu_s": round(sum(action.result.cpu_s for action in actions if action.result), 3),
        "wall_s": round(wall_s, 2),
    }


def wrong_rewards(rollouts: Sequence[DemoRollout]) -> list[dict[str, Any]]:
    """Return the trajectories whose reward is not what their code deserves, with the reason."""
    return [
        {
            "trajectory": rollout.plan.name,
            "submitted": rollout.plan.attempts[-1].name,
            "reward": rollout.reward,
            "deserves": rollout.plan.deserved_reward,
            "reason": rollout.reason,
        }
        for rollout in rollouts
        if not rollout.is_correct
    ]


def print_results(console: Console, rollouts: Sequence[DemoRollout], figures: dict[str, float]) -> None:
    table = Table(title="Submitted solutions and their rewards", title_justify="left")
    for heading in ("solution", "rollouts", "rewarded", "deserved"):
        table.add_column(heading, justify="left" if heading == "solution" else "right")
    by_name: dict[str, list[DemoRollout]] = {}
    for rollout in rollouts:
        last = rollout.plan.attempts[-1]
        by_name.setdefault(f"hack: {last.name}" if last.kind == "hack" else last.name, []).append(rollout)
    for name in sorted(by_name, key=lambda name: (name.startswith("hack"), name)):
        group = by_name[name]
        deserved = sum(int(rollout.plan.deserved_reward) for rollout in group)
        table.add_row(name, str(len(group)), str(sum(r.reward == 1.0 for r in group)), str(deserved))
    console.print(table)
    outcomes = Counter(str(action.outcome) for rollout in rollouts for action in rollout.actions)
    _print_text(console, "Outcomes: " + ", ".join(f"{name} {count}" for name, count in outcomes.most_common()))
    if figures["scored"]:
        means = "; ".join(
            f"{name} {figures[f'{name}_right_mean']:.2f} and {figures[f'{name}_wrong_mean']:.2f}"
            for name in SCORE_NAMES.values()
        )
        _print_text(
            console,
            f"{figures['reward_services']:g} reward services on one device scored {figures['scored']:g} rollouts."
            f" Mean scores of rewarded and of other solutions: {means}",
        )
    _print_text(
        console,
        f"Action completion time: mean {figures['act_mean_s']:.3f} s = queue {figures['queue_mean_s']:.3f}"
        f" + run {figures['run_mean_s']:.3f} + overhead {figures['overhead_mean_s']:.3f};"
        f" p50 {figures['act_p50_s']:.3f}, p99 {figures['act_p99_s']:.3f}",
    )


def _print_text(console: Console, text: str) -> None:
    """Print a text that is wrapped between words on a terminal."""
    console.print(text, markup=False, soft_wrap=False)


def print_comparison(console: Console, runs: Sequence[PolicyRun]) -> None:
    """Print a row for each policy in five columns, at most 80 characters wide."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in ("", "step time", "mean ACT", "cores held", "wrong rewards"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    figures = policy_figures(runs)
    for run in runs:
        table.add_row(
            PLAIN_NAMES[run.policy],
            f"{run.wall_s:.0f} s",
            f"{figures[f'{run.policy}_act_mean_s']:.2f} s",
            f"{run.reserved_core_s:.0f} core-s",
            f"{figures[f'{run.policy}_wrong_rewards']:.0f} of {len(run.rollouts)}",
        )
    console.print(table)
    console.print("ACT: action completion time, from submission to outcome", markup=False)


def print_policy_times(console: Console, runs: Sequence[PolicyRun]) -> None:
    """Print where the time of actions goes, a row for each policy, at most 80 characters wide."""
    figures = policy_figures(runs)
    columns = {
        "ACT p50": "act_p50_s",
        "ACT p99": "act_p99_s",
        "queue": "queue_mean_s",
        "run": "run_mean_s",
        "overhead": "overhead_mean_s",
    }
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("seconds per action", no_wrap=True)
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for run in runs:
        values = (figures[f"{run.policy}_{name}"] for name in columns.values())
        table.add_row(PLAIN_NAMES[run.policy], *(f"{value:.3g}" for value in values))
    console.print(table)


def comparison_claim(static: PolicyRun, ours: PolicyRun, unlimited: PolicyRun | None = None) -> str:
    """Return the result of a comparison with static pods, and with pods without limits, as one sentence."""
    figures = demo_figures(ours.rollouts, wall_s=ours.wall_s)
    free = f" (pods without limits: {unlimited.wall_s:.0f} s)" if unlimited is not None else ""
    hacks = f"{figures['hacks_tried']:g} kind{'' if figures['hacks_tried'] == 1 else 's'} of reward hack"
    return (
        f"Same {len(ours.rollouts)} rollouts, same {ours.cores:g} cores: {static.wall_s:.0f} s → {ours.wall_s:.0f} s"
        f"{free};"
        f" cores held {static.reserved_core_s:.0f} → {ours.reserved_core_s:.0f} core-s;"
        f" {hacks}, {figures['hacks_rewarded']:g} paid"
    )


def _score_means(rollouts: Sequence[DemoRollout]) -> dict[str, float]:
    """Return mean scores of rewarded and of unrewarded trajectories; 0 if there is no score."""
    means = {}
    for kind, name in SCORE_NAMES.items():
        for of, reward in (("right", 1.0), ("wrong", 0.0)):
            known = [
                each.model_scores[kind] for each in rollouts if each.reward == reward and kind in each.model_scores
            ]
            means[f"{name}_{of}_mean"] = round(fmean(known), 4) if known else 0.0
    return means


def _mean(actions: Sequence[Action], name: str) -> float:
    values = [getattr(action.times, name) or 0.0 for action in actions]
    return round(fmean(values), 4) if values else 0.0


def _is_isolated(action: Action) -> bool:
    if action.result is None or action.kind != "exec":
        return True
    return all(action.result.enforcement.get(wall) == "enforced" for wall in ISOLATION_CHECKS)
