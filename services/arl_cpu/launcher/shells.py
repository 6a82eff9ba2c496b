"""The sessions of one environment, and the command that runs in one of them now.

To the agent opening one is an action that leaves the shell behind, and a command is one that it only watches over: what
comes meanwhile is the action's, what was there before is not.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from .attempt import Attempt
from .loop import Loop
from .orders import Order
from .sessions import ARGV, KILLED, NO_SHELL, VARIABLES, NoTerminal, Session

__all__ = ["Shells"]

_MOST_SESSIONS = 16
_ANSWER_LIMIT_S = 1.0
"""For a shell whose command was killed."""


class Shells:
    def __init__(
        self,
        loop: Loop,
        send: Callable[[Order, Sequence[int]], None],
        finish: Callable[[], None],
        show: Callable[[bytes], None],
    ) -> None:
        self._loop, self._send, self._finish, self._show = loop, send, finish, show
        self._open: dict[str, Session] = {}
        self._attempt: Attempt | None = None
        self._stage: Literal["opening", "watched", "running", "unread", "ended"] | None = None
        self._order, self._owner = Order(mode="watch"), None  # type: tuple[Order, int | None]
        self._name = ""
        self._status = KILLED
        self._notes: list[str] = []
        self._no_terminal: str | None = None

    def begin(self, attempt: Attempt, order: Order, owner: int | None) -> None:
        """Open the session if need be, then run the command in it. Raises OSError."""
        for capture in attempt.captures:
            capture.close()  # there is the terminal instead
        self._attempt, self._order, self._owner = attempt, order, owner
        self._name, self._status, self._notes = attempt.spec.session or "", KILLED, []
        self._no_terminal = None
        known = self._open.get(self._name)
        if known is not None and known.has_died():
            self._forget(known)
        self._prepare()

    def _prepare(self) -> None:
        """Whatever comes before the command."""
        has_room = self._name not in self._open and len(self._open) < _MOST_SESSIONS
        session = self._new_session() if has_room else None
        if session is None:
            self._begin_watch()
            return
        self._stage = "opening"
        variables = {**self._order.env, **VARIABLES}
        self._send(replace(self._order, mode="session", argv=ARGV, env=variables, fetch=(), files={}), session.ends)
        session.handed_over()

    def _new_session(self) -> Session | None:
        try:
            session = self._open[self._name] = Session(self._loop, self._owner)
        except NoTerminal as failure:
            self._no_terminal = str(failure)
            return None
        self._notes.append(f"session {self._name!r} began with this command")
        return session

    def started(self) -> None:
        """The agent has begun what it was told last."""
        if self._stage != "watched" or self._attempt is None:
            return
        self._stage = "running"
        session = self._open.get(self._name)
        if session is None or self._attempt.cause is not None:
            self._ended(KILLED)
        else:
            session.run(self._attempt.spec.command or "", self._show, self._ended, self._attempt.feed)

    def goes_on(self, message: dict[str, Any]) -> bool:
        """Whether the end that the agent tells of is not the action's; if it is, it tells of the command now."""
        stage, self._stage = self._stage, None
        if stage is None or self._attempt is None:
            return False
        if stage == "opening":
            if message.get("status") == 0 and self._attempt.cause is None:
                self._begin_watch()
                return True
            self._did_not_open(message)
            return False
        if stage == "unread" and message.get("status") == 0 and self._attempt.cause is None:
            self._attempt.files.clear()  # those were read before the command ran
            self._prepare()
            return True
        if self._no_terminal is not None:
            # The node's failure, and this command's alone.
            self._attempt.cause = self._attempt.cause or "setup"
            message.pop("status", None)
            self._notes.append(self._no_terminal)
        elif self._name not in self._open and len(self._open) >= _MOST_SESSIONS:
            message["refused"] = f"an environment has at most {_MOST_SESSIONS} sessions"
        if "status" in message:
            message["status"] = self._status
        message["message"] = "; ".join(filter(None, (message.get("message"), *self._notes))) or None
        return False

    def interrupt(self) -> bool:
        """Whether there is a command that may end by itself now."""
        session = self._open.get(self._name)
        if self._stage != "running" or session is None:
            return False
        session.interrupt()
        return True

    def killed(self) -> None:
        """All that the command started is dead; if its shell does not say so soon, it never will."""
        if self._stage == "running" and self._attempt is not None:
            self._loop.after(_ANSWER_LIMIT_S, partial(self._give_up, self._attempt))

    def close(self) -> None:
        self._stage = None
        for session in list(self._open.values()):
            session.close()
        self._open.clear()

    def _begin_watch(self) -> None:
        self._stage = "watched"
        null = os.open("/dev/null", os.O_RDWR)
        try:
            self._send(replace(self._order, mode="watch", argv=(), env={}), [null] * 3)
        finally:
            os.close(null)

    def _did_not_open(self, message: dict[str, Any]) -> None:
        if (session := self._open.get(self._name)) is not None:
            self._forget(session)
        if message.get("status") == 0:
            message["status"] = KILLED
        elif "status" in message:
            message["refused"] = NO_SHELL

    def _give_up(self, attempt: Attempt) -> None:
        session = self._open.get(self._name)
        if self._attempt is attempt and self._stage == "running" and session is not None:
            session.give_up()

    def _ended(self, status: int) -> None:
        """The command has. A shell that was only interrupted still counts as stopped."""
        if self._stage != "running" or self._attempt is None:
            return
        self._stage = "ended"
        self._status = KILLED if self._attempt.cause is not None else status
        session = self._open.get(self._name)
        if session is not None and not session.is_open:
            self._forget(session)
            if session.why_not_run is not None:
                # It may have died between two commands, and only now known to be: a new one is as good.
                if session.can_run_elsewhere and not self._notes and self._attempt.cause is None:
                    self._stage = "unread"
                    self._finish()
                    return
                self._notes.append(f"the command did not run: {session.why_not_run}")
            self._notes.append(f"session {self._name!r} ended with this command; the next one begins another")
        self._finish()

    def _forget(self, session: Session) -> None:
        self._open.pop(self._name, None)
        session.close()
