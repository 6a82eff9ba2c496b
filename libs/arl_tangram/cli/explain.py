"""`explain`: the reasons why an action waits, in sentences."""

import sys
from collections.abc import Iterator
from typing import Annotated
from uuid import UUID

import typer

from arl_core.domain.states import EstimateBasis, WaitReason
from arl_tangram.cli.actions import connected_client
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import FormatOption, OutputFormat, stdout
from arl_wire.actions.explanations import ActionExplanation, AheadCounts, WaitExplanation

__all__ = ["register", "sentences"]

RULE_TEXTS = {
    WaitReason.QUEUE_PAUSED: "The queue of its task is paused: nothing of it starts until it is resumed.",
    WaitReason.ENVIRONMENT_BUSY: "Its environment is busy with others that come first, or is ending.",
    WaitReason.STARTS_NEXT_ROUND: "It starts in the next round.",
    WaitReason.NO_NODE_FITS: "No node there is could ever run it.",
    WaitReason.NO_NODE_OPEN: "The nodes that could run it are cordoned or unreachable; see `tangram nodes list`.",
    WaitReason.TASK_AT_QUOTA: "The quota of its task lets no more of it start; a gang needs room for all of it.",
    WaitReason.POSTPONED_FOR_MORE_CORES: "It could start, but is expected to end sooner if it waits for more.",
    WaitReason.WAITS_BEHIND_OVERDUE: "Free resources are reserved for an action that has waited too long."
    " Only actions that are expected to end before it can start may use them.",
    WaitReason.WAITS_FOR_GANG: "It could start, but not all that start with it could.",
    WaitReason.WAITS_BEHIND_PRIORITY: "Actions of a higher priority go first.",
    WaitReason.WAITS_IN_ORDER: "Others of its task and priority go first.",
    WaitReason.WAITS_BEHIND_FAIR_SHARE: "It is the first of its task; tasks that had less than theirs go first.",
    WaitReason.WAITS_FOR_CAPACITY: "Nobody goes before it; too little is free.",
}


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(explain)


def explain(
    directory: DirOption,
    id: Annotated[UUID, typer.Argument(help="Id of an action, settled or not.")],
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Explain why an action waits: missing resources, actions ahead of it, and estimates."""
    with connected_client(directory) as tangram:
        found = tangram.explain(id)
    if output is OutputFormat.JSON:
        sys.stdout.write(found.model_dump_json(indent=1, exclude_none=True) + "\n")
        return
    for sentence in sentences(found):
        stdout.print(sentence, highlight=False, markup=False, soft_wrap=True)


def sentences(explanation: ActionExplanation) -> Iterator[str]:
    """Yield sentences about the action, the most important first."""
    if explanation.wait is None:
        yield from _granted_sentences(explanation)
        return
    yield f"Queued: {explanation.wait.rule}. {RULE_TEXTS[explanation.wait.rule]}"
    yield from _shortage_sentences(explanation.wait)
    yield from _order_sentences(explanation.wait)
    yield from _estimate_sentences(explanation.wait)


def _granted_sentences(explanation: ActionExplanation) -> Iterator[str]:
    reason = f" ({explanation.reason})" if explanation.reason else ""
    yield f"{explanation.state.capitalize()}{f': {explanation.outcome}{reason}' if explanation.outcome else ''}."
    if explanation.node is not None:
        amounts = ", ".join(f"{amount} {name}" for name, amount in (explanation.amounts or {}).items())
        yield f"Granted on {explanation.node}: {amounts or 'nothing'}."
    if explanation.straggles is not None:
        straggles = explanation.straggles
        yield f"It runs for {straggles.elapsed_s:.1f} s, and is a straggler after {straggles.limit_s:.1f} s."
    times = explanation.times
    if times.queue_s is not None:
        ran = f", ran {times.run_s:.3f} s" if times.run_s is not None else ""
        yield f"It waited {times.queue_s:.3f} s{ran}."


def _shortage_sentences(wait: WaitExplanation) -> Iterator[str]:
    where = f"On {wait.node}" if wait.node is not None else "At best"
    for each in wait.lacks:
        yield f"{where} it needs {each.needed} {each.resource}; {each.free} of {each.capacity} are free."
    if wait.unenforced:
        yield f"No node has {', '.join(wait.unenforced)}, which it requires."


def _order_sentences(wait: WaitExplanation) -> Iterator[str]:
    if wait.ahead_in_environment:
        yield f"{wait.ahead_in_environment} come before it in its environment."
    if wait.ahead is not None:
        yield _ahead_sentence(wait.ahead)
    yield (
        f"It counts as submitted at {wait.counts_from.isoformat(timespec='seconds')}, {wait.lead_s:g} s behind shorter"
        f" ones. Its task's part is {100 * wait.part:.1f} %; it had {wait.debt_s:g} s of all nodes more than the least."
    )


def _ahead_sentence(ahead: AheadCounts) -> str:
    least = "At least " if ahead.at_least else ""
    return (
        f"{least}{ahead.priority} of a higher priority, {ahead.in_task} of its task"
        f" and {ahead.other_tasks} of others go first."
    )


def _estimate_sentences(wait: WaitExplanation) -> Iterator[str]:
    basis = {
        EstimateBasis.LEARNT: f"learnt from {wait.runs} runs like it",
        EstimateBasis.POOLED: "by runs of classes like it; none of its own was seen",
        EstimateBasis.DECLARED: "by what was declared and an assumption; nothing like it was seen",
    }[wait.basis]
    of = f" with {wait.narrowest.amount} {wait.resource}" if wait.resource else ""
    wider = f", {wait.widest.seconds:.3g} s with {wait.widest.amount}" if wait.widest != wait.narrowest else ""
    yield f"Expected to run {wait.narrowest.seconds:.3g} s{of}{wider} ({basis})."
    if wait.backlog_s is not None:
        yield f"All that runs and waits on {wait.node} is {wait.backlog_s:.3g} s of work for it."
