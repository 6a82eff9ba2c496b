"""SWE-ReX's sessions are ours: what is run in a session so that it answers as SWE-ReX's would.

A session that `create_session` has opened knows so by a variable that nothing in it can unset; a command for one that
is not there opens a new shell, which does not, and ends before it has run anything. The launcher says in an action's
message whether its session is new. A command is looked at by `bash -n` first, as theirs is, and what comes of that
stands at the beginning of the output behind a mark that nobody else knows: whatever the command writes comes later.
"""

import re
from dataclasses import dataclass
from hashlib import sha256
from shlex import quote

from arl_core.states import Outcome
from arl_gateway.compat.swerex.bodies import CreateSession, InterruptSession, RunCommand, SessionReply
from arl_gateway.compat.swerex.errors import RaisedThere, not_done_here, unless_ours
from arl_gateway.compat.swerex.programs import bytes_of
from arl_wire.actions import Action

__all__ = [
    "CLOSE",
    "CLOSES_WITHIN_S",
    "LABEL",
    "closed",
    "cut_off",
    "interrupted",
    "must_be_plain",
    "name_of",
    "observed",
    "opened",
    "opening",
    "running",
]

LABEL = "swerex-session"
"""Of an action: the session it is for."""
PROMPT = "SHELLPS1PREFIX"
"""What SWE-ReX names as expected where it waited for the prompt."""
TIMEOUT, END = "pexpect.exceptions.TIMEOUT", "pexpect.exceptions.EOF"
NEW, ENDED, NOT_RUN = "began with this command", "ended with this command", "the command did not run: "
CLOSE = "\\builtin exit 0"
CLOSES_WITHIN_S = 10.0
PREFIX, LONGEST = "rex-", 60
IS_OURS = "[[ ${__tangram_rex+x} ]]"
# In a function nothing is left of it; it runs as the command substitution itself, and says `bash` as theirs does.
CHECK = r"""__tangram_rex() {
\builtin local said
if said=$(\builtin exec -a bash "$BASH" -n 2>&1 <<<"$2"); then \builtin printf '%s:0:\n' "$1"
else \builtin printf '%s:%d:%s\n' "$1" "$?" "$said"; \builtin return 2; fi; }
\builtin readonly -f __tangram_rex; \builtin readonly __tangram_rex=1"""
MARKED = re.compile(r"[0-9a-f]{32}:0:\n")
ESCAPES = re.compile(r"\x1B[@-_][0-?]*[ -/]*[@-~]")


def name_of(session: str) -> str:
    """Of ours: none that is opened otherwise has such a name by accident."""
    if len(session) <= LONGEST and re.fullmatch(r"[A-Za-z0-9._-]+", session):
        return PREFIX + session
    return f"{PREFIX}.{sha256(session.encode(errors='surrogatepass')).hexdigest()[:32]}"


def opening(body: CreateSession) -> str:
    sources = "".join(f"\n\\builtin eval {quote(f'source {path}')}" for path in body.startup_source)
    return f"if {IS_OURS}; then :; else\n{CHECK}{sources}\n\\builtin true; fi"


def running(command: str, mark: str) -> str:
    text = quote(command)
    check = f"{{ {IS_OURS} || \\builtin exit 0; \\__tangram_rex {mark} {text}; }} 2>/dev/null"
    return f"{check} && \\builtin eval {text}"


def opened(action: Action, body: CreateSession) -> str:
    """What its start showed. Raises RaisedThere."""
    unless_ours(action)
    if action.outcome is Outcome.USER_TIMEOUT:
        raise RaisedThere(f"session {body.session!r} did not start within {body.startup_timeout} s", TIMEOUT)
    _must_have_run(action)
    if not _is_new(action):
        raise RaisedThere(f"session {body.session} already exists", "SessionExistsError")
    if _has_ended(action):
        raise RaisedThere(f"session {body.session!r} ended while it started", END, output=_shown(action))
    return _shown(action)


def observed(action: Action, body: RunCommand, mark: str) -> SessionReply:
    """Raises RaisedThere."""
    unless_ours(action)
    _must_be_there(action, body.session)
    ran = _Ran.of(action, mark)
    if ran.syntax is not None:
        raise _wrong_syntax(body.command, *ran.syntax)
    if action.outcome is Outcome.USER_TIMEOUT:
        message = f"timeout after {body.timeout} seconds while running command {body.command!r}"
        raise RaisedThere(message, "CommandTimeoutError", output=ran.output)
    _must_have_run(action)
    code = _exit_code(action)
    if _has_ended(action):
        message = f"session {body.session!r} {ENDED} (exit code {code}). Here is the output:\n{ran.output!r}"
        raise RaisedThere(message, END, output=ran.output, exit_code=code)
    if body.check == "raise" and not ran.is_marked:
        raise RaisedThere(f"the session does not show what it runs (command: {body.command!r})", "NoExitCodeError")
    if body.check == "raise" and code != 0:
        message = f"Command {body.command!r} failed with exit code {code}. Here is the output:\n{ran.output!r}"
        raise RaisedThere(f"{body.error_msg}: {message}" if body.error_msg else message, "NonZeroExitCodeError")
    return SessionReply(
        output=ran.output,
        exit_code=code if body.check != "ignore" and ran.is_marked else None,
        failure_reason=ran.failure,
        expect_string=PROMPT,
    )


def interrupted(action: Action, session: str, output: str) -> SessionReply:
    """By its turn nothing runs in the session any more. Raises RaisedThere."""
    unless_ours(action)
    _must_be_there(action, session)
    if action.outcome is Outcome.USER_TIMEOUT:
        raise RaisedThere("Failed to interrupt session", TIMEOUT)
    _must_have_run(action)
    return SessionReply(output=output.strip(), exit_code=0, expect_string=PROMPT)


def cut_off(action: Action) -> str:
    """What a command showed that its timeout ended; else nothing."""
    if action.outcome is not Outcome.USER_TIMEOUT:
        return ""
    return MARKED.sub("", _shown(action), count=1)


def closed(action: Action, session: str) -> None:
    """Raises RaisedThere."""
    unless_ours(action)
    _must_be_there(action, session)


def must_be_plain(body: RunCommand | InterruptSession) -> None:
    """Raises RaisedThere for what is left running while nobody waits for it: it would hold cores."""
    if isinstance(body, RunCommand) and (body.is_interactive_command or body.is_interactive_quit):
        raise not_done_here("interactive programs; start one with its input, as `gdb -batch` or a heredoc")
    if body.expect:
        raise not_done_here("`expect`; a command is over when the shell is back")


@dataclass(frozen=True, slots=True)
class _Ran:
    """What a command showed, without what the look at it did."""

    output: str
    is_marked: bool
    syntax: tuple[int, str] | None = None
    failure: str = ""

    @classmethod
    def of(cls, action: Action, mark: str) -> "_Ran":
        shown = _shown(action)
        found = re.search(rf"{mark}:(\d{{1,3}}):", shown)  # a trap of the session's own may show the mark otherwise
        if found is None:
            return cls(shown, is_marked=False)
        before, rest = shown[: found.start()], shown[found.end() :]
        if found[1] != "0":
            return cls(before, is_marked=True, syntax=(int(found[1]), rest))
        failure = _failure(action)
        note = f"\n{failure}\n" if failure else ""
        return cls(before + rest.removeprefix("\n") + note, is_marked=True, failure=failure)


def _failure(action: Action) -> str:
    """What is not as a terminal would show it."""
    found = []
    if action.outcome is Outcome.LIMIT_EXCEEDED:
        found.append(f"limit exceeded: {action.reason}")
    if action.result is not None and action.result.stdout.truncated:
        found.append(f"the output was cut: it had {action.result.stdout.total_bytes} bytes")
    return "; ".join(found)


def _shown(action: Action) -> str:
    if action.result is None:
        return ""
    # Our terminals end a line by a newline alone, so that a return before it is the program's own.
    return ESCAPES.sub("", bytes_of(action.result.stdout).decode(errors="backslashreplace"))


def _is_new(action: Action) -> bool:
    return NEW in (action.message or "")


def _has_ended(action: Action) -> bool:
    return ENDED in (action.message or "")


def _must_be_there(action: Action, session: str) -> None:
    if _is_new(action):
        raise RaisedThere(f"session {session!r} does not exist", "SessionDoesNotExistError")


def _must_have_run(action: Action) -> None:
    message = action.message or ""
    was_refused = action.result is None or (action.result.exit_code is None and action.result.signal is None)
    if NOT_RUN in message or (action.outcome is Outcome.USER_ERROR and was_refused):
        raise RaisedThere(f"it was not run: {message or action.outcome}", action=str(action.id))


def _exit_code(action: Action) -> int:
    """As a shell has it."""
    if action.result is None:
        return 1
    if action.result.exit_code is not None:
        return action.result.exit_code
    return 128 + (action.result.signal or 0)


def _wrong_syntax(command: str, status: int, said: str) -> RaisedThere:
    """In SWE-ReX's words: agents show it to their model."""
    message = (
        f"Error (exit code {status}) while checking bash command \n{command!r}\n"
        f"---- Stderr ----\n{said}\n---- Stdout ----\n"
    )
    return RaisedThere(message, "BashIncorrectSyntaxError", bash_stdout="", bash_stderr=said)
