"""The SWE-ReX protocol without an environment: infrastructure errors, output marks and uploaded forms."""

import base64
import io
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from arl_core.domain.states import ActionOutcome, ActionState
from arl_gateway.compat.swerex import files, programs, sessions
from arl_gateway.compat.swerex.errors import SwerexError
from arl_gateway.compat.swerex.models import (
    SwerexBashAction,
    SwerexCreateSessionRequest,
    SwerexExecuteRequest,
    SwerexReadFileRequest,
)
from arl_gateway.compat.swerex.multipart import parse_form
from arl_wire.actions.action import Action, ActionResult
from arl_wire.errors import ValidationFailed
from arl_wire.validation import OutputStream

MARK = "0" * 32


def a_settled(outcome: ActionOutcome, *, shown: bytes = b"", message: str | None = None, **result: Any) -> Action:
    given = {"grant_no": 1, "exit_code": 0, **result}
    stream = OutputStream(text="", base64=base64.b64encode(shown).decode(), total_bytes=len(shown))
    return Action(
        id=uuid4(),
        task="t",
        kind="exec",
        state=ActionState.SETTLED,
        outcome=outcome,
        reason="node_lost",
        message=message,
        created_at=datetime.now(UTC),
        result=ActionResult(stdout=stream, **given),
    )


READERS: dict[str, Callable[[Action], Any]] = {
    "create_session": lambda action: sessions.parse_open_result(action, SwerexCreateSessionRequest()),
    "run_in_session": lambda action: sessions.parse_run_result(
        action, SwerexBashAction(command="true", check="ignore"), MARK
    ),
    "interrupt": lambda action: sessions.parse_interrupt_result(action, "default", ""),
    "close_session": lambda action: sessions.check_close_result(action, "default"),
    "execute": lambda action: programs.parse_result(action, SwerexExecuteRequest(command=["true"]), MARK),
    "read_file": lambda action: files.decode_file(action, SwerexReadFileRequest(path="/a")),
    "write_file": lambda action: files.raise_if_failed(action, "/a"),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize(
    "outcome", [ActionOutcome.INFRA_ERROR, ActionOutcome.DEADLINE_IN_QUEUE, ActionOutcome.CANCELLED]
)
def test_infrastructure_error_is_never_a_command_result(read: Callable[[Action], Any], outcome: ActionOutcome) -> None:
    with pytest.raises(SwerexError, match=f"^{outcome}: ") as raised:
        read(a_settled(outcome, shown=f"{MARK}:0:\n".encode()))
    assert raised.value.transfer.class_path == "swerex.exceptions.SwerexException"
    assert raised.value.transfer.extra_info["is_infrastructure"]


def test_command_unread_by_its_shell_is_reported_as_not_run() -> None:
    message = (
        "the command did not run: the shell of the session ended before it read the command;"
        " session 'rex-default' ended with this command"
    )
    with pytest.raises(SwerexError, match=r"^session error: the command did not run: "):
        sessions.parse_run_result(
            a_settled(ActionOutcome.USER_ERROR, message=message), SwerexBashAction(command="x"), MARK
        )


def test_output_of_background_job_before_mark_is_kept() -> None:
    action = a_settled(ActionOutcome.OK, shown=f"of a job\n{MARK}:0:\nits own {MARK}:2:forged\n".encode())
    said = sessions.parse_run_result(action, SwerexBashAction(command="x"), MARK)
    assert said.output == f"of a job\nits own {MARK}:2:forged\n"


def test_silent_session_has_no_exit_code() -> None:
    """The output of its shell was redirected."""
    assert (
        sessions.parse_run_result(
            a_settled(ActionOutcome.OK), SwerexBashAction(command="x", check="silent"), MARK
        ).exit_code
        is None
    )
    with pytest.raises(SwerexError) as raised:
        sessions.parse_run_result(a_settled(ActionOutcome.OK), SwerexBashAction(command="x", check="raise"), MARK)
    assert raised.value.transfer.class_path == "swerex.exceptions.NoExitCodeError"


@pytest.mark.parametrize("name", ["default", "a b", "", "ü", "x" * 500, "../x", "a/b"])
def test_session_name_is_prefixed_unique_and_valid(name: str) -> None:
    ours = sessions.session_name(name)
    assert ours.startswith("rex-")
    assert len(ours) <= 64
    assert ours.isascii()
    assert sessions.session_name(name + "2") != ours


@pytest.mark.parametrize("encoding", ["idna", "punycode", "rot13", "no such"])
def test_unsupported_encoding_raises_lookup_error(encoding: str) -> None:
    with pytest.raises(SwerexError) as raised:
        files.decode_file(
            a_settled(ActionOutcome.OK, shown=b"text"), SwerexReadFileRequest(path="/a", encoding=encoding)
        )
    assert raised.value.transfer.class_path == "builtins.LookupError"


def test_archive_that_unpacks_to_too_many_bytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_UNPACKED_BYTES", 1000)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(1001))
    with pytest.raises(SwerexError, match="at most 1000 bytes"):
        files.unzip_transfer("/a", packed.getvalue(), MARK)


def test_file_too_large_for_stdin_is_staged_first() -> None:
    small, large = (
        files.write_transfer("/a", bytes(6 << 20), MARK),
        files.write_transfer("/a", bytes((6 << 20) + 1), MARK),
    )
    assert (small.archive, len(small.action_fields["stdin"])) == (None, 8 << 20)
    assert large.archive is not None
    assert large.action_fields["argv"][-2:] == ["/a", large.staging_path]


def test_multipart_form_is_read_byte_for_byte() -> None:
    content = b"\r\n--other\r\n\r\n\0\xff--\r\n"
    form = (
        b'preamble\r\n--B\r\nContent-Disposition: form-data; name="target_path"\r\n\r\n/a b\r\n'
        b'--B\r\nContent-Disposition: form-data; name="file"; filename="x"\r\nContent-Type: a/b\r\n\r\n'
        + content
        + b"\r\n--B--\r\nepilogue"
    )
    assert parse_form(form, b"B") == {"target_path": b"/a b", "file": content}


@pytest.mark.parametrize(
    "form",
    [
        b"",
        b"--B--",
        b'--B\r\nContent-Disposition: form-data; name="file"\r\n\r\ncut off',
        b'--B\r\nContent-Disposition: form-data; name="file"\r\n\r\nx\r\n' * 20 + b"--B--",
        b"--B\r\n" + b"a" * 9000 + b"\r\n\r\nx\r\n--B--",
        b"--B\r\n" + b"".join(b"%d: %s\r\n" % (n, b"a" * 3000) for n in range(3)) + b"\r\nx\r\n--B--",
        b"--B\r\nname\r\n\r\nx\r\n--B--",
        b"--B\r\n\r\n" + b"\r\n--Bx" * 20 + b"\r\n--B--",
    ],
)
def test_truncated_or_oversized_form_is_refused(form: bytes) -> None:
    if form == b"--B--":
        assert parse_form(form, b"B") == {}
        return
    with pytest.raises(ValidationFailed, match="ends with its boundary"):
        parse_form(form, b"B")


@pytest.mark.parametrize("boundary", [b"", b" ", b"a" * 71, b"a\r\nb"])
def test_invalid_boundary_is_refused(boundary: bytes) -> None:
    with pytest.raises(ValidationFailed):
        parse_form(b"--" + boundary + b"--", boundary)


def test_mark_changed_by_session_trap_is_ignored() -> None:
    action = a_settled(ActionOutcome.OK, shown=f"{MARK}:zz:{MARK}:0:\nfound\n".encode())
    assert "found" in sessions.parse_run_result(action, SwerexBashAction(command="true"), MARK).output


def test_undecodable_bytes_fail_reading_the_file() -> None:
    action = a_settled(ActionOutcome.OK, shown=b"\xff")
    with pytest.raises(SwerexError) as raised:
        files.decode_file(action, SwerexReadFileRequest(path="f", errors="surrogateescape"))
    assert raised.value.transfer.class_path == "builtins.UnicodeEncodeError"
