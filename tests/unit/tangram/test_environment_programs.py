"""Outcomes of actions as exit codes of programs, for the sandboxes of frameworks."""

from datetime import UTC, datetime
from uuid import UUID

import pytest

from arl_core.domain.states import MASKED_OUTCOMES, ActionOutcome, ActionState
from arl_tangram import ActionFailed
from arl_tangram.adapters.environment_programs import ProgramOutput, in_directory
from arl_wire.actions.action import Action, ActionResult, OutputStream


def an_action(outcome: ActionOutcome, result: ActionResult | None) -> Action:
    return Action(
        id=UUID(int=1),
        task="t",
        kind="exec",
        state=ActionState.SETTLED,
        outcome=outcome,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        result=result,
    )


@pytest.mark.parametrize(
    ("outcome", "result", "code"),
    [
        (ActionOutcome.OK, ActionResult(grant_no=1, exit_code=0), 0),
        (ActionOutcome.USER_ERROR, ActionResult(grant_no=1, exit_code=3), 3),
        (ActionOutcome.USER_ERROR, ActionResult(grant_no=1, signal=15), 143),
        (ActionOutcome.USER_ERROR, ActionResult(grant_no=1), 1),
        (ActionOutcome.LIMIT_EXCEEDED, ActionResult(grant_no=1, exit_code=0), 1),
        (ActionOutcome.LIMIT_EXCEEDED, None, 1),  # the environment ran out of memory before
    ],
    ids=["ok", "exit", "signal", "not-run", "limit", "environment-limit"],
)
def test_program_output_has_the_exit_code_of_a_shell(
    outcome: ActionOutcome, result: ActionResult | None, code: int
) -> None:
    output = ProgramOutput.of(an_action(outcome, result))
    assert (output.exit_code, output.timed_out) == (code, False)


@pytest.mark.parametrize("outcome", sorted(MASKED_OUTCOMES))
def test_infrastructure_error_is_no_program_output(outcome: ActionOutcome) -> None:
    with pytest.raises(ActionFailed):
        ProgramOutput.of(an_action(outcome, ActionResult(grant_no=1, exit_code=1)))


def test_bytes_that_are_no_text_are_kept() -> None:
    result = ActionResult(grant_no=1, exit_code=0, stdout=OutputStream(text="\\xff", base64="/w=="))
    assert ProgramOutput.of(an_action(ActionOutcome.OK, result)).stdout == b"\xff"


def test_command_without_a_directory_is_unchanged() -> None:
    assert in_directory(["ls", "-l"], None) == in_directory(["ls", "-l"], "") == ["ls", "-l"]
    assert in_directory(["ls", "-l"], "/tmp/a b")[-3:] == ["/tmp/a b", "ls", "-l"]
