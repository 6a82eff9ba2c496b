"""The sessions of one environment and the command that runs in one of them.

For the agent, opening a session is an action that leaves the shell behind. A command is an action that the agent only
watches: processes that start meanwhile belong to the action, earlier ones do not.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from arl_cpu.launcher.agent.agent_request import AgentRequest
from arl_cpu.launcher.linux.event_loop import EventLoop
from arl_cpu.launcher.sandbox.attempt import SandboxAttempt
from arl_cpu.launcher.sandbox.shell_session import (
    KILLED_STATUS,
    NO_SHELL_MESSAGE,
    SHELL_ARGV,
    SHELL_VARIABLES,
    UNATTENDED_VARIABLES,
    ShellSession,
    TerminalUnavailable,
)

__all__ = ["ShellManager"]

_MAX_SESSIONS = 16
_SHELL_RESPONSE_TIMEOUT_S = 1.0
"""Seconds that a shell may take to report a killed command."""


class ShellManager:
    """The sessions of one environment, and the steps of the current command.

    `finish` ends the agent's watch. Its argument is True if the shell has ended and the agent knows its status.
    """

    def __init__(
        self,
        loop: EventLoop,
        send: Callable[[AgentRequest, Sequence[int]], None],
        finish: Callable[[bool], None],
        on_output: Callable[[bytes], None],
    ) -> None:
        self._loop, self._send, self._finish, self._on_output = loop, send, finish, on_output
        self._sessions: dict[str, ShellSession] = {}
        self._attempt: SandboxAttempt | None = None
        self._stage: Literal["opening", "watched", "running", "unread", "ended"] | None = None
        self._request, self._owner_uid = AgentRequest(mode="watch"), None  # type: tuple[AgentRequest, int | None]
        self._name = ""
        self._status: int | None = KILLED_STATUS
        """Wait status of the command. None if the shell ended without a report; the agent then knows the status."""
        self._notes: list[str] = []
        self._terminal_error: str | None = None

    def begin(self, attempt: SandboxAttempt, request: AgentRequest, owner_uid: int | None) -> None:
        """Open the session if necessary, then run the command in it.

        Raises OSError, or ValueError if the session runs as another user.
        """
        open_session = self._sessions.get(attempt.spec.session or "")
        if attempt.spec.user is not None and open_session is not None and open_session.user != request.user:
            raise ValueError(
                f"session {attempt.spec.session!r} runs as user {open_session.user!r}: leave out `user`, or use another"
                " session"
            )
        for capture in attempt.captures:
            capture.close()  # the terminal replaces them
        self._attempt, self._request, self._owner_uid = attempt, request, owner_uid
        self._name, self._status, self._notes = attempt.spec.session or "", KILLED_STATUS, []
        self._terminal_error = None
        known = self._sessions.get(self._name)
        if known is not None and known.has_died():
            self._remove(known)
        self._prepare()

    def _prepare(self) -> None:
        """Start the step before the command: open the session, or begin to watch."""
        has_room = self._name not in self._sessions and len(self._sessions) < _MAX_SESSIONS
        session = self._new_session() if has_room else None
        if session is None:
            self._begin_watch()
            return
        self._stage = "opening"
        variables = {**UNATTENDED_VARIABLES, **self._request.env, **SHELL_VARIABLES}
        self._send(
            replace(self._request, mode="session", argv=SHELL_ARGV, env=variables, fetch=(), files={}),
            session.shell_files,
        )
        session.close_shell_files()

    def _new_session(self) -> ShellSession | None:
        try:
            session = self._sessions[self._name] = ShellSession(self._loop, self._owner_uid)
        except TerminalUnavailable as failure:
            self._terminal_error = str(failure)
            return None
        session.user = self._request.user
        self._notes.append(f"session {self._name!r} began with this command")
        return session

    def started(self) -> None:
        """Handle that the agent has started the last request."""
        if self._stage != "watched" or self._attempt is None:
            return
        self._stage = "running"
        session = self._sessions.get(self._name)
        if session is None or self._attempt.cause is not None:
            self._command_ended(KILLED_STATUS)
        else:
            session.run(
                self._attempt.spec.command or "", self._on_output, self._command_ended, self._attempt.stdin_feed
            )

    def handle_exit(self, message: dict[str, Any]) -> bool:
        """Handle an exit that the agent reports. Return True if it is not the end of the action.

        If it is the end of the action, the message receives the command's status.
        """
        stage, self._stage = self._stage, None
        if stage is None or self._attempt is None:
            return False
        if stage == "opening":
            if message.get("status") == 0 and self._attempt.cause is None:
                self._sessions[self._name].pid = message.get("pid", 0)
                self._notes += filter(None, [message.get("message")])
                self._begin_watch()
                return True
            self._handle_open_failure(message)
            return False
        if stage == "unread" and message.get("status") == 0 and self._attempt.cause is None:
            self._attempt.files.clear()  # those were read before the command ran
            self._prepare()
            return True
        if self._terminal_error is not None:
            # A failure of the node that concerns only this command.
            self._attempt.cause = self._attempt.cause or "setup"
            message.pop("status", None)
            self._notes.append(self._terminal_error)
        elif self._name not in self._sessions and len(self._sessions) >= _MAX_SESSIONS:
            message["refused"] = f"an environment can have at most {_MAX_SESSIONS} sessions; end one with `exit`"
        shell_status = message.pop("shell_status", None)
        if "status" in message:
            known = shell_status if self._status is None else self._status
            message["status"] = KILLED_STATUS if known is None else known
        message["message"] = "; ".join(filter(None, (message.get("message"), *self._notes))) or None
        return False

    def interrupt(self) -> bool:
        """Interrupt the command. Return False if no command runs."""
        session = self._sessions.get(self._name)
        if self._stage != "running" or session is None:
            return False
        session.interrupt()
        return True

    def attempt_killed(self) -> None:
        """Handle the kill of the command's processes. A shell that does not report it soon is abandoned."""
        if self._stage == "running" and self._attempt is not None:
            self._loop.call_later(_SHELL_RESPONSE_TIMEOUT_S, partial(self._abandon, self._attempt))

    def close(self) -> None:
        """Close all sessions."""
        self._stage = None
        for session in list(self._sessions.values()):
            session.close()
        self._sessions.clear()

    def _begin_watch(self) -> None:
        self._stage = "watched"
        null = os.open("/dev/null", os.O_RDWR)
        try:
            session = self._sessions.get(self._name)
            shell = (str(session.pid),) if session is not None and session.pid else ()
            self._send(replace(self._request, mode="watch", argv=shell, env={}), [null] * 3)
        finally:
            os.close(null)

    def _handle_open_failure(self, message: dict[str, Any]) -> None:
        if (session := self._sessions.get(self._name)) is not None:
            self._remove(session)
        if message.get("status") == 0:
            message["status"] = KILLED_STATUS
        elif "status" in message:
            message["missing"] = NO_SHELL_MESSAGE

    def _abandon(self, attempt: SandboxAttempt) -> None:
        session = self._sessions.get(self._name)
        if self._attempt is attempt and self._stage == "running" and session is not None:
            session.abandon()

    def _command_ended(self, status: int | None) -> None:
        """Handle the end of the command. A shell that was only interrupted still counts as stopped."""
        if self._stage != "running" or self._attempt is None:
            return
        self._stage = "ended"
        self._status = KILLED_STATUS if self._attempt.cause is not None else status
        session = self._sessions.get(self._name)
        if session is not None and not session.is_open:
            self._remove(session)
            if session.not_run_reason is not None:
                # The shell may have died between two commands; a new one is equivalent.
                if session.can_retry and not self._notes and self._attempt.cause is None:
                    self._stage = "unread"
                    self._finish(False)
                    return
                self._notes.append(f"the command did not run: {session.not_run_reason}")
            self._notes.append(f"session {self._name!r} ended with this command; the next one begins another")
        self._finish(self._status is None)

    def _remove(self, session: ShellSession) -> None:
        self._sessions.pop(self._name, None)
        session.close()
