"""The page `reference/outcomes`: states, transitions, outcomes and wait reasons, from `arl_core.domain.states`."""

import ast
import inspect
import re
from enum import StrEnum

from markdown_text import anchor, cell, code, table

from arl_core.domain import states
from arl_core.domain.states import MASKED_OUTCOMES, TRANSITIONS, ActionOutcome, ActionState, EstimateBasis, WaitReason

__all__ = ["render"]

INTRO = """\
# States and outcomes

An action has one state. It settles exactly once, with one outcome. [Outcomes](../concepts/outcomes.md) explains how to
use an outcome in training.
"""
OUTCOMES = """\
An outcome marked *mask* says nothing about the program. Leave the sample out of the loss, and never give it a reward of
0. See [Mask infrastructure errors](../guides/masking-infrastructure-errors.md).
"""
TRANSITION_NOTE = """\
A Postgres trigger rejects every other transition. The writer is the service whose database role may make it.
"""


def render() -> str:
    outcomes = _comments(ActionOutcome)
    transitions = [
        [
            code(edge.old.value),
            code(edge.new.value),
            ", ".join(sorted(writer.value for writer in edge.writers)),
            cell(edge.reason),
            ", ".join(code(outcome) for outcome in ActionOutcome if outcome in edge.outcomes),
        ]
        for edge in TRANSITIONS
        if edge.old is not edge.new
    ]
    return "\n".join(
        [
            INTRO,
            f"## Outcomes {anchor('outcomes')}\n",
            OUTCOMES,
            table(
                ["Outcome", "Meaning", "Reward"],
                [
                    [code(name), cell(text), "mask" if name in MASKED_OUTCOMES else "you decide"]
                    for name, text in outcomes
                ],
            ),
            f"## States {anchor('states')}\n",
            _enum_table("State", ActionState),
            f"## Transitions {anchor('transitions')}\n",
            TRANSITION_NOTE,
            table(["From", "To", "Writers", "Reason", "Outcomes"], transitions),
            f"## Wait reasons {anchor('wait-reasons')}\n",
            "`tangram explain ID` reports the first reason that applies to a queued action.\n",
            _enum_table("Reason", WaitReason),
            f"## Basis of an estimate {anchor('estimate-basis')}\n",
            "`tangram explain ID` says what the expected run time is based on.\n",
            _enum_table("Basis", EstimateBasis),
        ]
    )


def _enum_table(title: str, enum: type[StrEnum]) -> str:
    return table([title, "Meaning"], [[code(name), cell(text)] for name, text in _comments(enum)])


def _comments(enum: type[StrEnum]) -> list[tuple[str, str]]:
    """Return the values with the comments behind them, as sentences. Raises ValueError for a value without one."""
    source = inspect.getsource(states).splitlines()
    start = inspect.getsourcelines(enum)[1] - 1
    node = ast.parse("\n".join(source[start:])).body[0]
    found = []
    for statement in node.body if isinstance(node, ast.ClassDef) else ():
        if not isinstance(statement, ast.Assign):
            continue
        line = source[start + statement.lineno - 1]
        comment = re.search(r"#\s*(.+)$", line)
        if comment is None:
            raise ValueError(f"{enum.__name__}: {line.strip()} needs a comment that explains it")
        found.append((ast.literal_eval(statement.value), f"{comment[1][0].upper()}{comment[1][1:].rstrip('.')}."))
    return found
