"""Test the response of `/run_code` for each outcome of the action that reads files with absolute paths."""

from datetime import UTC, datetime
from typing import Any

import pytest

from arl_core.domain.states import ActionOutcome, ActionState
from arl_gateway.blocking.code_runs import CodeRunResult
from arl_gateway.compat.sandbox_fusion.absolute_files import collect_action
from arl_gateway.compat.sandbox_fusion.routes import RunCodeRequest, RunCodeResponse, response_for
from arl_wire.actions.action import Action
from support.builders import numbered

PATH = "/tmp/out"
NOW = datetime.now(UTC)


def settled(outcome: ActionOutcome, *, message: str | None = None, **result: Any) -> Action:
    output = {"text": "", "total_bytes": 0}
    found: dict[str, Any] = {"id": numbered(1), "task": "t", "kind": "exec", "state": ActionState.SETTLED}
    found |= {"outcome": outcome, "message": message, "created_at": NOW, "settled_at": NOW}
    return Action.model_validate({**found, "result": {"stdout": output, "stderr": output, "grant_no": 1, **result}})


def responded(collect: Action | None) -> RunCodeResponse:
    run = settled(ActionOutcome.USER_ERROR, exit_code=3)
    return response_for(CodeRunResult(run=run, collect=collect), RunCodeRequest(code="1", fetch_files=[PATH]))


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (ActionOutcome.USER_ERROR, "cannot run 'sh'"),
        (ActionOutcome.LIMIT_EXCEEDED, "limit_exceeded"),
        (ActionOutcome.USER_TIMEOUT, "longer than 5 s"),
    ],
)
def test_files_that_could_not_be_read_are_named_in_the_message(outcome: ActionOutcome, reason: str) -> None:
    message = "cannot run 'sh'" if outcome is ActionOutcome.USER_ERROR else None
    partial = {f"{collect_action([PATH])['argv'][4]}/0": "YQ=="}
    found = responded(settled(outcome, message=message, files=partial))
    assert found.run_result is not None
    assert (found.status, found.run_result.return_code, found.files) == ("Failed", 3, {})
    assert found.message.startswith("files with absolute paths were not returned: ")
    assert reason in found.message


def test_files_that_were_read_are_returned_without_a_message() -> None:
    staged = collect_action([PATH])["fetch"]
    found = responded(settled(ActionOutcome.OK, exit_code=0, files={staged[0]: "YQ=="}))
    assert (found.status, found.message, found.files) == ("Failed", "", {PATH: "YQ=="})


@pytest.mark.parametrize("outcome", [ActionOutcome.INFRA_ERROR, ActionOutcome.DEADLINE_IN_QUEUE])
def test_failure_that_the_program_cannot_cause_is_a_sandbox_error(outcome: ActionOutcome) -> None:
    found = responded(settled(outcome))
    assert (found.status, found.message.startswith("the files were not read: ")) == ("SandboxError", True)


def test_directory_of_copies_differs_between_requests() -> None:
    assert collect_action([PATH])["fetch"] != collect_action([PATH])["fetch"]
