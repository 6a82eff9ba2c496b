"""Outcomes of actions as exit codes of programs, for the sandboxes of frameworks."""

import errno
from datetime import UTC, datetime
from typing import cast
from uuid import UUID

import pytest

from arl_core.domain.states import MASKED_OUTCOMES, ActionOutcome, ActionState
from arl_tangram import ActionFailed, AsyncEnvironment
from arl_tangram.adapters.environment_programs import (
    CUT_NOTE,
    AsyncEnvironmentPrograms,
    FileTransferError,
    ProgramOutput,
    in_directory,
)
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


def test_program_that_did_not_run_is_told_apart_from_exit_code_1() -> None:
    ran, refused = (
        ProgramOutput.of(an_action(ActionOutcome.USER_ERROR, ActionResult(grant_no=1, exit_code=code)))
        for code in (1, None)
    )
    assert (ran.exit_code, ran.has_run) == (1, True)
    assert (refused.exit_code, refused.has_run) == (1, False)


def test_stderr_names_cut_output_and_the_reason_on_lines_of_their_own() -> None:
    failed = an_action(
        ActionOutcome.LIMIT_EXCEEDED,
        ActionResult(grant_no=1, stdout=OutputStream(truncated=True), stderr=OutputStream(text="Killed")),
    ).model_copy(update={"reason": "memory"})
    assert ProgramOutput.of(failed).stderr_with_reason() == f"Killed\n{CUT_NOTE}\nmemory\n"
    ok = an_action(ActionOutcome.OK, ActionResult(grant_no=1, exit_code=0, stderr=OutputStream(text="said")))
    assert ProgramOutput.of(ok).stderr_with_reason() == "said"


@pytest.mark.parametrize(
    ("outcome", "code", "error"),
    [
        (ActionOutcome.USER_ERROR, errno.ENOENT, FileNotFoundError),
        (ActionOutcome.USER_ERROR, errno.EISDIR, IsADirectoryError),
        (ActionOutcome.USER_ERROR, errno.EACCES, PermissionError),
        (ActionOutcome.USER_ERROR, 127, FileTransferError),  # the image has no `cat`
        (ActionOutcome.LIMIT_EXCEEDED, None, FileTransferError),
        (ActionOutcome.USER_TIMEOUT, None, FileTransferError),
    ],
)
async def test_failed_transfer_raises_what_its_script_means(
    outcome: ActionOutcome, code: int | None, error: type[OSError]
) -> None:
    programs = AsyncEnvironmentPrograms(cast(AsyncEnvironment, _Ending(outcome, code)))
    with pytest.raises(FileTransferError) as raised:
        await programs.read("/etc/x")
    assert isinstance(raised.value, error)
    assert (raised.value.errno in (errno.ENOENT, errno.EISDIR, errno.EACCES)) == (error is not FileTransferError)
    assert raised.value.filename == "/etc/x"


class _Ending:
    """An environment in which every action ends in the same way."""

    def __init__(self, outcome: ActionOutcome, code: int | None) -> None:
        self._action = an_action(outcome, ActionResult(grant_no=1, exit_code=code))

    async def run(self, **_: object) -> Action:
        return self._action


def test_bytes_that_are_no_text_are_kept() -> None:
    result = ActionResult(grant_no=1, exit_code=0, stdout=OutputStream(text="\\xff", base64="/w=="))
    assert ProgramOutput.of(an_action(ActionOutcome.OK, result)).stdout == b"\xff"


def test_command_without_a_directory_is_unchanged() -> None:
    assert in_directory(["ls", "-l"], None) == in_directory(["ls", "-l"], "") == ["ls", "-l"]
    assert in_directory(["ls", "-l"], "/tmp/a b")[-3:] == ["/tmp/a b", "ls", "-l"]
