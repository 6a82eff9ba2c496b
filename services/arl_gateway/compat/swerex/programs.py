"""SWE-ReX's `execute`: a program in an environment, and its result in SWE-ReX's format."""

import re
from base64 import b64decode
from typing import Any

from arl_core.domain.states import ActionOutcome
from arl_gateway.compat.swerex.errors import SwerexError, os_error, raise_if_infra_error
from arl_gateway.compat.swerex.models import SwerexExecuteRequest, SwerexExecuteResponse
from arl_wire.actions.action import Action
from arl_wire.validation import OutputStream

__all__ = ["SHELL", "execute_fields", "parse_result", "raise_if_truncated", "stream_bytes"]

NOT_STARTED_PREFIX = "cannot run "
"""Prefix of the message of an action whose program does not exist in its environment."""
SHELL = ("/bin/sh", "-c")
# If the program cannot be executed, the wrapper writes the reason after a marker; all other stderr is the program's.
# The marker is the shell's own name, so the program cannot see it.
WRAPPER_SCRIPT = r"""why=cwd:2; trap 'printf %s "$0:$why:" >&2' EXIT
if [ -n "$1" ]; then
  [ -e "$1" ] && why=cwd:20; [ -d "$1" ] && why=cwd:13
  case "$1" in /*) where=$1;; *) where=./$1;; esac
  CDPATH= cd "$where" 2>/dev/null || exit 1
  unset OLDPWD
fi
shift; why=program; exec "$@" """
MERGE_STREAMS = "2>&1"


def execute_fields(body: SwerexExecuteRequest, marker: str) -> dict[str, Any]:
    """Return the fields of the action. If `env` is given, it replaces all variables, like Python's `subprocess`."""
    given = [body.command] if isinstance(body.command, str) else body.command
    argv = [*SHELL, *given] if body.shell else list(given)
    if body.env is not None or body.cwd is not None or body.merge_output_streams:
        script = WRAPPER_SCRIPT + (MERGE_STREAMS if body.merge_output_streams else "")
        argv = [*_variables(body.env), *SHELL, script, marker, body.cwd or "", *argv]
    return {"argv": argv}


def _variables(env: dict[str, str] | None) -> list[str]:
    if env is None:
        return []
    if any(not name or "=" in name for name in env):
        raise SwerexError("names of environment variables must not be empty or contain `=`", "builtins.ValueError")
    return ["env", "-i", "--", *(f"{name}={value}" for name, value in env.items())]


def parse_result(action: Action, body: SwerexExecuteRequest, marker: str) -> SwerexExecuteResponse:
    """Convert a settled action to a response. Raises SwerexError."""
    raise_if_infra_error(action)
    if action.outcome is ActionOutcome.USER_TIMEOUT:
        message = f"Timeout ({body.timeout}s) exceeded while running command"
        raise SwerexError(message, "CommandTimeoutError", **_streams(action))
    _raise_if_not_started(action, body, marker)
    raise_if_truncated(action)
    reply = SwerexExecuteResponse(**_streams(action), exit_code=_exit_code(action))
    if action.outcome is ActionOutcome.LIMIT_EXCEEDED:
        reply.exit_code = reply.exit_code or 1
        reply.stderr += f"\nlimit exceeded: {action.reason}\n"
    return _raise_on_exit_code(reply, body)


def _raise_on_exit_code(reply: SwerexExecuteResponse, body: SwerexExecuteRequest) -> SwerexExecuteResponse:
    if body.check and reply.exit_code != 0:
        message = (
            f"Command {body.command!r} failed with exit code {reply.exit_code}. "
            f"Stdout:\n{reply.stdout!r}\nStderr:\n{reply.stderr!r}"
        )
        raise SwerexError(f"{body.error_msg}: {message}" if body.error_msg else message, "NonZeroExitCodeError")
    return reply


def stream_bytes(stream: OutputStream) -> bytes:
    """Return the bytes of an output."""
    return b64decode(stream.base64) if stream.base64 is not None else stream.text.encode()


def _raise_if_not_started(action: Action, body: SwerexExecuteRequest, marker: str) -> None:
    streams, message = _streams(action), action.message or ""
    if found := re.search(rf"{marker}:(?:cwd:(\d+)|program):$", streams["stderr"] or streams["stdout"]):
        if found[1] is not None:
            raise os_error(int(found[1]), body.cwd or "")
        raise os_error(_errno_of(action), _program_name(body))
    if message.startswith(NOT_STARTED_PREFIX) and action.outcome is ActionOutcome.USER_ERROR:
        raise os_error(_errno_of(action), execute_fields(body, marker)["argv"][0])
    if action.outcome is ActionOutcome.USER_ERROR and _exit_code(action) is None:
        raise SwerexError(f"the program was not run: {message or action.outcome}", action=str(action.id))


def _errno_of(action: Action) -> int:
    """Return the errno of an action that did not start: 127 means not found, like in a shell; else it is not
    executable.
    """
    return 2 if _exit_code(action) == 127 else 13


def _program_name(body: SwerexExecuteRequest) -> str:
    if body.shell:
        return SHELL[0]
    return body.command if isinstance(body.command, str) else body.command[0]


def raise_if_truncated(action: Action, subject: str = "") -> None:
    """Raise SwerexError if an output was truncated; a program that reads it could not use it."""
    streams = {"stdout": action.result.stdout, "stderr": action.result.stderr} if action.result is not None else {}
    for name, stream in streams.items():
        if stream.truncated:
            kept = len(stream_bytes(stream))
            raise SwerexError(
                f"{subject or name} has {stream.total_bytes} bytes, but only the first {kept} bytes of an output are"
                " stored; write the output to a file and download it with GET /v1/environments/ID/archive",
                exit_code=_exit_code(action),
                **_streams(action),
            )


def _streams(action: Action) -> dict[str, str]:
    result = action.result
    if result is None:
        return {"stdout": "", "stderr": ""}
    return {
        name: stream_bytes(stream).decode(errors="backslashreplace")
        for name, stream in (("stdout", result.stdout), ("stderr", result.stderr))
    }


def _exit_code(action: Action) -> int | None:
    """Return the exit code like Python's `subprocess`: negative for a signal."""
    result = action.result
    if result is None or (result.exit_code is None and result.signal is None):
        return None
    return result.exit_code if result.exit_code is not None else -(result.signal or 0)
