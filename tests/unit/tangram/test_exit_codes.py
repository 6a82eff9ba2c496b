"""Every outcome of an action has its documented exit code."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from arl_core.domain.states import ActionOutcome, ActionState
from arl_tangram.cli.actions.output import exit_code_of, print_action
from arl_tangram.cli.output import OutputFormat
from arl_wire.actions.action import Action, ActionResult

AT = datetime(2026, 1, 1, tzinfo=UTC)


def ended(outcome: ActionOutcome, *, kind: str = "exec", reason: str | None = None, **result: Any) -> Action:
    found = ActionResult(grant_no=1, **result) if result else None
    return Action(
        id=UUID(int=1), task="t", kind=kind, state=ActionState.SETTLED, outcome=outcome, reason=reason, created_at=AT,
        settled_at=AT, result=found,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("action", "code", "status"),
    [
        (ended(ActionOutcome.OK, exit_code=0), 0, "ok"),
        (ended(ActionOutcome.USER_ERROR, exit_code=7), 7, "user_error (exit code 7)"),
        (ended(ActionOutcome.USER_ERROR, signal=9), 137, "user_error (SIGKILL)"),
        (ended(ActionOutcome.USER_ERROR, signal=40), 168, "user_error (signal 40)"),
        (ended(ActionOutcome.USER_ERROR), 125, "user_error"),
        (ended(ActionOutcome.USER_ERROR, kind="score", reason="no_item_scored"), 1, "user_error (no_item_scored)"),
        (ended(ActionOutcome.USER_TIMEOUT, signal=9), 124, "user_timeout"),
        (ended(ActionOutcome.LIMIT_EXCEEDED, reason="memory", signal=9), 125, "limit_exceeded (memory)"),
        (ended(ActionOutcome.INFRA_ERROR, reason="node_lost"), 125, "infra_error (node_lost)"),
        (ended(ActionOutcome.DEADLINE_IN_QUEUE), 125, "deadline_in_queue"),
        (ended(ActionOutcome.CANCELLED), 125, "cancelled"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_outcome_has_its_exit_code_and_status_line(
    action: Action, code: int, status: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of(action) == code
    print_action(action, OutputFormat.TEXT)
    assert capsys.readouterr().err.startswith(f"{action.id} {status}  queue ")


def test_all_outcomes_are_tested() -> None:
    assert {outcome.value for outcome in ActionOutcome} == {
        "ok", "user_error", "user_timeout", "limit_exceeded", "infra_error", "deadline_in_queue", "cancelled",
    }  # fmt: skip
