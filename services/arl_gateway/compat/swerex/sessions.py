"""SWE-ReX's sessions on top of ours: commands that make a session answer like SWE-ReX's.

A session opened by `create_session` is marked with a read-only variable. A command for a session that does not exist
opens a new shell, which lacks the variable and exits before it runs anything. The launcher's message in the action
reports whether the session is new.

A command is first checked by `bash -n`, like in SWE-ReX. The result of the check precedes the output, behind a secret
marker. All output of the command comes after it.
"""

import re
from dataclasses import dataclass
from hashlib import sha256
from shlex import quote

from arl_core.domain.states import ActionOutcome
from arl_gateway.compat.swerex.errors import SwerexError, not_implemented, raise_if_infra_error
from arl_gateway.compat.swerex.models import (
    SwerexBashAction,
    SwerexBashInterruptAction,
    SwerexBashObservation,
    SwerexCreateSessionRequest,
)
from arl_gateway.compat.swerex.programs import stream_bytes
from arl_wire.actions.action import Action

__all__ = [
    "CLOSE_COMMAND",
    "CLOSE_TIMEOUT_S",
    "SESSION_LABEL",
    "check_close_result",
    "open_command",
    "parse_interrupt_result",
    "parse_open_result",
    "parse_run_result",
    "reject_interactive",
    "run_command",
    "session_name",
    "timed_out_output",
]

SESSION_LABEL = "swerex-session"
"""Label of an action with the name of its session."""
PROMPT_PATTERN = "SHELLPS1PREFIX"
"""Expected string that SWE-ReX reports after it waited for the prompt."""
PEXPECT_TIMEOUT, PEXPECT_EOF = "pexpect.exceptions.TIMEOUT", "pexpect.exceptions.EOF"
NEW_SESSION_NOTE, ENDED_NOTE, NOT_RUN_NOTE = (
    "began with this command",
    "ended with this command",
    "the command did not run: ",
)
CLOSE_COMMAND = "\\builtin exit 0"
CLOSE_TIMEOUT_S = 10.0
NAME_PREFIX, MAX_NAME_LENGTH = "rex-", 60
IS_OPENED_TEST = "[[ ${__tangram_rex+x} ]]"
# The function leaves no variables in the session. The command substitution itself executes bash, with `bash` as its
# name in messages, like SWE-ReX's.
SYNTAX_CHECK = r"""__tangram_rex() {
\builtin local said
if said=$(\builtin exec -a bash "$BASH" -n 2>&1 <<<"$2"); then \builtin printf '%s:0:\n' "$1"
else \builtin printf '%s:%d:%s\n' "$1" "$?" "$said"; \builtin return 2; fi; }
\builtin readonly -f __tangram_rex; \builtin readonly __tangram_rex=1"""
MARKER_PREFIX = re.compile(r"[0-9a-f]{32}:0:\n")
ESCAPES = re.compile(r"\x1B[@-_][0-?]*[ -/]*[@-~]")


def session_name(session: str) -> str:
    """Return our name of the session. Its prefix avoids collisions with other sessions."""
    if len(session) <= MAX_NAME_LENGTH and re.fullmatch(r"[A-Za-z0-9._-]+", session):
        return NAME_PREFIX + session
    return f"{NAME_PREFIX}.{sha256(session.encode(errors='surrogatepass')).hexdigest()[:32]}"


def open_command(body: SwerexCreateSessionRequest) -> str:
    """Return the text that marks a new session and sources the given files."""
    sources = "".join(f"\n\\builtin eval {quote(f'source {path}')}" for path in body.startup_source)
    return f"if {IS_OPENED_TEST}; then :; else\n{SYNTAX_CHECK}{sources}\n\\builtin true; fi"


def run_command(command: str, marker: str) -> str:
    """Return the text that checks the syntax of a command and then runs it."""
    text = quote(command)
    check = f"{{ {IS_OPENED_TEST} || \\builtin exit 0; \\__tangram_rex {marker} {text}; }} 2>/dev/null"
    return f"{check} && \\builtin eval {text}"


def parse_open_result(action: Action, body: SwerexCreateSessionRequest) -> str:
    """Return the output of the session's start-up. Raises SwerexError."""
    raise_if_infra_error(action)
    if action.outcome is ActionOutcome.USER_TIMEOUT:
        raise SwerexError(f"session {body.session!r} did not start within {body.startup_timeout} s", PEXPECT_TIMEOUT)
    _raise_if_not_run(action)
    if not _is_new(action):
        raise SwerexError(f"session {body.session} already exists", "SessionExistsError")
    if _has_ended(action):
        raise SwerexError(f"session {body.session!r} ended while it started", PEXPECT_EOF, output=_output_text(action))
    return _output_text(action)


def parse_run_result(action: Action, body: SwerexBashAction, marker: str) -> SwerexBashObservation:
    """Convert a settled command to an observation. Raises SwerexError."""
    raise_if_infra_error(action)
    _raise_if_new(action, body.session)
    ran = _SessionOutput.parse(action, marker)
    if ran.syntax is not None:
        raise _syntax_error(body.command, *ran.syntax)
    if action.outcome is ActionOutcome.USER_TIMEOUT:
        message = f"timeout after {body.timeout} seconds while running command {body.command!r}"
        raise SwerexError(message, "CommandTimeoutError", output=ran.output)
    _raise_if_not_run(action)
    code = _exit_code(action)
    if _has_ended(action):
        message = f"session {body.session!r} {ENDED_NOTE} (exit code {code}). Here is the output:\n{ran.output!r}"
        raise SwerexError(message, PEXPECT_EOF, output=ran.output, exit_code=code)
    if body.check == "raise" and not ran.has_marker:
        raise SwerexError(
            f"the session hides the exit codes of its commands (command: {body.command!r})", "NoExitCodeError"
        )
    if body.check == "raise" and code != 0:
        message = f"Command {body.command!r} failed with exit code {code}. Here is the output:\n{ran.output!r}"
        raise SwerexError(f"{body.error_msg}: {message}" if body.error_msg else message, "NonZeroExitCodeError")
    return SwerexBashObservation(
        output=ran.output,
        exit_code=code if body.check != "ignore" and ran.has_marker else None,
        failure_reason=ran.failure,
        expect_string=PROMPT_PATTERN,
    )


def parse_interrupt_result(action: Action, session: str, output: str) -> SwerexBashObservation:
    """Convert a settled interrupt. It runs after all earlier commands of the session have ended. Raises SwerexError."""
    raise_if_infra_error(action)
    _raise_if_new(action, session)
    if action.outcome is ActionOutcome.USER_TIMEOUT:
        raise SwerexError("Failed to interrupt session", PEXPECT_TIMEOUT)
    _raise_if_not_run(action)
    return SwerexBashObservation(output=output.strip(), exit_code=0, expect_string=PROMPT_PATTERN)


def timed_out_output(action: Action) -> str:
    """Return the output of a command that its timeout ended; otherwise an empty string."""
    if action.outcome is not ActionOutcome.USER_TIMEOUT:
        return ""
    return MARKER_PREFIX.sub("", _output_text(action), count=1)


def check_close_result(action: Action, session: str) -> None:
    """Raise SwerexError if the session did not exist."""
    raise_if_infra_error(action)
    _raise_if_new(action, session)


def reject_interactive(body: SwerexBashAction | SwerexBashInterruptAction) -> None:
    """Raise SwerexError for interactive commands, which would keep cores allocated while no call waits."""
    if isinstance(body, SwerexBashAction) and (body.is_interactive_command or body.is_interactive_quit):
        raise not_implemented(
            "interactive programs; pass the input at the start, for example with `gdb -batch` or a heredoc"
        )
    if body.expect:
        raise not_implemented("`expect`; a command ends when the shell shows its prompt again")


@dataclass(frozen=True, slots=True)
class _SessionOutput:
    """The output of a command, without the output of the syntax check."""

    output: str
    has_marker: bool
    syntax: tuple[int, str] | None = None
    failure: str = ""

    @classmethod
    def parse(cls, action: Action, marker: str) -> "_SessionOutput":
        """Return the output of an action, split at the marker."""
        shown = _output_text(action)
        found = re.search(rf"{marker}:(\d{{1,3}}):", shown)  # a trap may print the marker otherwise
        if found is None:
            return cls(shown, has_marker=False)
        before, rest = shown[: found.start()], shown[found.end() :]
        if found[1] != "0":
            return cls(before, has_marker=True, syntax=(int(found[1]), rest))
        failure = _failure_note(action)
        note = f"\n{failure}\n" if failure else ""
        return cls(before + rest.removeprefix("\n") + note, has_marker=True, failure=failure)


def _failure_note(action: Action) -> str:
    """Describe limits and truncation, which a terminal would not show."""
    found = []
    if action.outcome is ActionOutcome.LIMIT_EXCEEDED:
        found.append(f"limit exceeded: {action.reason}")
    if action.result is not None and action.result.stdout.truncated:
        found.append(f"the output was truncated: it had {action.result.stdout.total_bytes} bytes")
    return "; ".join(found)


def _output_text(action: Action) -> str:
    if action.result is None:
        return ""
    # Our terminals end a line with a newline only, so a carriage return before it is the program's own.
    return ESCAPES.sub("", stream_bytes(action.result.stdout).decode(errors="backslashreplace"))


def _is_new(action: Action) -> bool:
    return NEW_SESSION_NOTE in (action.message or "")


def _has_ended(action: Action) -> bool:
    return ENDED_NOTE in (action.message or "")


def _raise_if_new(action: Action, session: str) -> None:
    if _is_new(action):
        raise SwerexError(f"session {session!r} does not exist", "SessionDoesNotExistError")


def _raise_if_not_run(action: Action) -> None:
    message = action.message or ""
    was_refused = action.result is None or (action.result.exit_code is None and action.result.signal is None)
    if NOT_RUN_NOTE in message or (action.outcome is ActionOutcome.USER_ERROR and was_refused):
        raise SwerexError(f"session error: {message or action.outcome}", action=str(action.id))


def _exit_code(action: Action) -> int:
    """Return the exit code like a shell: 128 plus the number of a signal."""
    if action.result is None:
        return 1
    if action.result.exit_code is not None:
        return action.result.exit_code
    return 128 + (action.result.signal or 0)


def _syntax_error(command: str, status: int, stderr: str) -> SwerexError:
    """Return a syntax error in SWE-ReX's words: agents show it to their model."""
    message = (
        f"Error (exit code {status}) while checking bash command \n{command!r}\n"
        f"---- Stderr ----\n{stderr}\n---- Stdout ----\n"
    )
    return SwerexError(message, "BashIncorrectSyntaxError", bash_stdout="", bash_stderr=stderr)
