"""`explain`: the reasons why an action waits, in sentences."""

from collections.abc import Iterator
from typing import Annotated
from uuid import UUID

import typer

from arl_core.domain.states import EstimateBasis, WaitReason
from arl_core.steps.projection import BoostRule
from arl_tangram.cli.client import connected_client
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import FormatOption, OutputFormat, print_model, stdout
from arl_wire.actions.explanations import ActionExplanation, AheadCounts, WaitExplanation

__all__ = ["register", "sentences", "wait_sentences"]

WAIT_REASON_TEXTS = {
    WaitReason.QUEUE_PAUSED: "The queue of its task is paused. Resume it with `tangram queues resume TASK`.",
    WaitReason.PULLING_IMAGE: "No node has its image yet.",
    WaitReason.ENVIRONMENT_BUSY: "Another action runs in its environment, or its environment is ending.",
    WaitReason.STARTS_NEXT_ROUND: "It starts in the next scheduling round.",
    WaitReason.NO_NODE_FITS: "No node can ever run it.",
    WaitReason.NO_SCHEDULABLE_NODE: "The nodes that could run it are cordoned or lost; see `tangram nodes list`.",
    WaitReason.NODES_END_TOO_SOON: "The nodes that could run it end before its time limit. It waits for another node.",
    WaitReason.TASK_AT_QUOTA: "Its task has reached its quota. A gang needs room for all of its actions.",
    WaitReason.POSTPONED_FOR_MORE_CORES: "It could start now, but would end sooner if it waits for more cores.",
    WaitReason.WAITS_BEHIND_RESERVATION: "The free resources are reserved for an action that has waited too long."
    " Only actions that are expected to end before it can start may use them.",
    WaitReason.WAITS_FOR_GANG: "It could start, but not all actions of its gang fit.",
    WaitReason.WAITS_BEHIND_PRIORITY: "Actions of a higher priority are ahead.",
    WaitReason.WAITS_IN_ORDER: "Actions of its task with the same priority are ahead.",
    WaitReason.WAITS_BEHIND_FAIR_SHARE: "It is the first of its task. Tasks that used less than their share are ahead.",
    WaitReason.WAITS_FOR_CAPACITY: "No action is ahead of it, but too little is free.",
}


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(rich_help_panel="Inspect")(explain)


def explain(
    directory: DirOption,
    id: Annotated[UUID, typer.Argument(help="Id of an action.")],
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Explain why an action waits: missing resources, actions ahead of it, and estimates."""
    with connected_client(directory) as tangram:
        found = tangram.explain(id)
    if output is OutputFormat.JSON:
        print_model(found)
        return
    for sentence in sentences(found):
        stdout.print(sentence, highlight=False, markup=False, soft_wrap=True)


def sentences(explanation: ActionExplanation) -> Iterator[str]:
    """Yield sentences about the action, the most important first."""
    if explanation.wait is None:
        yield from _granted_sentences(explanation)
    else:
        yield from wait_sentences(explanation.wait)


def wait_sentences(wait: WaitExplanation) -> list[str]:
    """Return sentences about a queued action, the most important first."""
    return [
        f"Queued: {wait.reason}. {WAIT_REASON_TEXTS[wait.reason]}",
        *_shortage_sentences(wait),
        *_order_sentences(wait),
        *_step_sentences(wait),
        *_estimate_sentences(wait),
    ]


def _granted_sentences(explanation: ActionExplanation) -> Iterator[str]:
    reason = f" ({explanation.reason})" if explanation.reason else ""
    yield f"{explanation.state.capitalize()}{f': {explanation.outcome}{reason}' if explanation.outcome else ''}."
    if explanation.node is not None:
        allocation = ", ".join(f"{amount} {name}" for name, amount in (explanation.allocation or {}).items())
        yield f"Granted on {explanation.node}: {allocation or 'no resources'}."
    if (straggler := explanation.straggler) is not None:
        yield (
            f"It has run for {straggler.elapsed_s:.1f} s and is a straggler:"
            f" the limit of its class is {straggler.limit_s:.1f} s."
        )
    if explanation.critical:
        yield "Its trajectory was expected to end the step last, so it went first."
    times = explanation.times
    if times.queue_s is not None:
        ran = f", ran {times.run_s:.3f} s" if times.run_s is not None else ""
        yield f"It waited {times.queue_s:.3f} s{ran}."


def _shortage_sentences(wait: WaitExplanation) -> Iterator[str]:
    where = f"On {wait.node}" if wait.node is not None else "On the largest node"
    for each in wait.shortfalls:
        yield f"{where} it needs {each.needed} {each.resource}; {each.free} of {each.capacity} are free."
    if wait.time_left_s is not None and wait.time_limit_s is not None:
        yield (
            f"{where} actions may run for {max(0.0, wait.time_left_s):.0f} s more, because its machine ends it;"
            f" it may run for {wait.time_limit_s:.0f} s."
        )
    if wait.unenforced:
        yield f"No node enforces {', '.join(wait.unenforced)}, which it requires."


def _order_sentences(wait: WaitExplanation) -> Iterator[str]:
    if wait.ahead_in_environment:
        yield f"Ahead of it in its environment: {wait.ahead_in_environment}."
    if wait.ahead is not None:
        yield _ahead_sentence(wait.ahead)
    yield (
        f"Its wait counts from {wait.effective_arrival_at.isoformat(timespec='seconds')}."
        f" Its size places it {wait.size_penalty_s:g} s behind shorter actions."
    )
    yield (
        f"Its task has a share of {100 * wait.fair_share:.1f} % and used {wait.excess_usage_s:g} s of the cluster more"
        " than the waiting task that used least."
    )


BOOST_RULE_TEXTS = {
    BoostRule.CRITICAL_TRAJECTORY: "Its actions go first, because it is expected to end the step last.",
    BoostRule.ENDS_EARLIER: "Other trajectories are expected to end after it.",
    BoostRule.WORK_BOUND: "No action of the step goes first: the cores are busy until all work is done, in any order.",
    BoostRule.NODE_LIMIT: "It is expected to end nearly last, and enough other trajectories go first.",
    BoostRule.NO_PREDICTION: "Its end is unknown: give `expected_turns`, `progress` or `prompt`.",
    BoostRule.DISABLED: "It is expected to end the step last, and step awareness is off (`TANGRAM_STEP_AWARE`).",
    BoostRule.TRAJECTORY_ENDED: "It was ended.",
}


def _step_sentences(wait: WaitExplanation) -> Iterator[str]:
    if (position := wait.trajectory) is None:
        return
    expected = f" of {position.expected_turns}" if position.expected_turns is not None else ""
    rest = ""
    if position.projected_rest_s is not None:
        rest = f" It is expected to need {position.projected_rest_s:.3g} s more."
    yield f"Step {position.step}: its trajectory has ended {position.turns}{expected} actions.{rest}"
    yield BOOST_RULE_TEXTS[position.rule]


def _ahead_sentence(ahead: AheadCounts) -> str:
    least = "at least " if ahead.truncated else ""
    return (
        f"Ahead of it: {least}{ahead.priority} of a higher priority, {ahead.in_task} of its task"
        f" and {ahead.other_tasks} of other tasks."
    )


def _estimate_sentences(wait: WaitExplanation) -> Iterator[str]:
    basis = {
        EstimateBasis.LEARNT: f"learned from {wait.observed_runs} runs of its class",
        EstimateBasis.POOLED: "from runs of similar classes; its own class has not run yet",
        EstimateBasis.DECLARED: "from its declaration and a default; no similar class has run yet",
    }[wait.basis]
    minimum = f" with {wait.at_min.amount} {wait.resource}" if wait.resource else ""
    maximum = f", {wait.at_max.seconds:.3g} s with {wait.at_max.amount}" if wait.at_max != wait.at_min else ""
    yield f"Expected run time: {wait.at_min.seconds:.3g} s{minimum}{maximum} ({basis})."
    if wait.backlog_s is not None:
        yield f"Backlog of {wait.node}: {wait.backlog_s:.3g} s of running and queued work."
