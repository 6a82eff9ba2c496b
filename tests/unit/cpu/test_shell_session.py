"""The launcher's side of a session; the tests act as the shell."""

import errno
import gc
import os
import resource
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from arl_cpu.launcher.agent.agent_request import AgentRequest
from arl_cpu.launcher.agent.process_spawn import spawn_session
from arl_cpu.launcher.isolation.unsafe_local import UnsafeLocalIsolation
from arl_cpu.launcher.linux.event_loop import EventLoop
from arl_cpu.launcher.sandbox.attempt import SandboxAttempt
from arl_cpu.launcher.sandbox.shell_manager import ShellManager
from arl_cpu.launcher.sandbox.shell_session import KILLED_STATUS, ShellSession, TerminalUnavailable
from support.sandbox import a_session_command


class Played:
    """A session together with the files of its shell."""

    def __init__(self) -> None:
        self.loop = EventLoop()
        self.session = ShellSession(self.loop, None)
        ends = [os.dup(end) for end in self.session.shell_files]
        self.session.close_shell_files()
        self.terminal, self.commands, self.statuses = ends[0], ends[3], ends[4]
        self.files = ends
        self.shown = b""
        self.ended: list[int | None] = []

    def run(self, command: str) -> None:
        self.session.run(command, self._show, self.ended.append, None)

    def until_ended(self) -> int | None:
        assert self.loop.run_until(lambda: bool(self.ended), 5)
        return self.ended.pop()

    def _show(self, data: bytes) -> None:
        self.shown += data


@pytest.fixture
def played() -> Iterator[Played]:
    played = Played()
    yield played
    played.session.close()
    for file in played.files:
        os.close(file)


def test_shell_exit_ends_its_current_command(played: Played) -> None:
    played.run("exit 3")
    os.write(played.statuses, b"x:1:3\0")
    assert played.until_ended() == 3 << 8
    assert (played.session.is_open, played.session.not_run_reason) == (False, None)


@pytest.mark.parametrize("said", [b"x::0\0", b"x:1:0\0"])
def test_shell_that_ends_before_reading_reports_command_not_run(played: Played, said: bytes) -> None:
    played.run("true")
    os.write(played.statuses, b"r:1\x001:0\0")
    assert played.until_ended() == 0
    played.run("echo never")
    os.write(played.statuses, said)
    assert played.until_ended() is None
    assert not played.session.is_open
    assert "ended before it read the command" in (played.session.not_run_reason or "")


class Agent:
    """A fake environment agent that follows requests; its shells are real."""

    def __init__(self, where: Path) -> None:
        self.loop = EventLoop()
        self.shown = b""
        self.told: list[str] = []
        self.shells = ShellManager(self.loop, self._start, lambda _ended: self.told.append("finish"), self._show)
        self._order = AgentRequest(mode="run", cwd=str(where), env={"PATH": os.environ["PATH"]})
        self._shell = 0

    def _start(self, order: AgentRequest, files: Sequence[int]) -> None:
        self.told.append(order.mode)
        if order.mode == "session":
            self._shell = spawn_session(order, tuple(files), UnsafeLocalIsolation())

    def _show(self, data: bytes) -> None:
        self.shown += data

    def begin(self, attempt: SandboxAttempt) -> None:
        self.shells.begin(attempt, self._order, None)

    def open_session(self) -> None:
        assert self.told.pop() == "session"
        assert self.shells.handle_exit({"status": 0})

    def watch(self) -> None:
        assert self.told.pop() == "watch"
        self.shells.started()

    def stop_shell(self) -> None:
        os.kill(self._shell, signal.SIGSTOP)

    def say(self, status: bytes) -> None:
        Path(f"/proc/{self._shell}/fd/4").write_bytes(status)

    def end_shell(self) -> None:
        if self._shell:
            os.kill(self._shell, signal.SIGKILL)
            os.waitpid(self._shell, 0)
            self._shell = 0

    def until_shown(self, data: bytes) -> None:
        assert self.loop.run_until(lambda: data in self.shown, 5)

    def until_finished(self) -> None:
        assert self.loop.run_until(lambda: self.told == ["finish"], 5)
        self.told.clear()

    def end(self) -> dict[str, Any]:
        message: dict[str, Any] = {"status": 0}
        assert not self.shells.handle_exit(message)
        return message

    def close(self) -> None:
        self.end_shell()
        self.shells.close()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    agent = Agent(tmp_path)
    yield agent
    agent.close()


def its_first_command_ends(agent: Agent) -> None:
    agent.begin(SandboxAttempt(a_session_command("main", "x=1")))
    agent.open_session()
    agent.watch()
    agent.until_finished()
    assert agent.end()["status"] == 0


def a_stopped_shell_is_given(agent: Agent, command: str = "x=2", *, stdin: bytes = b"") -> SandboxAttempt:
    """Give a stopped shell the second command of its session, which the shell does not read."""
    its_first_command_ends(agent)
    agent.stop_shell()
    attempt = SandboxAttempt(a_session_command("main", command, stdin=stdin))
    agent.begin(attempt)
    agent.watch()
    return attempt


def test_command_unread_by_dead_shell_reruns_with_full_input(agent: Agent) -> None:
    a_stopped_shell_is_given(agent, "read said; echo [$x] $said", stdin=b"hello\n")
    agent.end_shell()
    agent.until_finished()
    assert agent.shells.handle_exit({"status": 0, "message": "of the watch that is over"})
    agent.open_session()
    agent.watch()
    agent.until_finished()
    assert agent.end() == {"status": 0, "message": "session 'main' began with this command"}
    assert agent.shown == b"[] hello\n"


def test_command_begun_by_shell_is_not_run_again(agent: Agent) -> None:
    its_first_command_ends(agent)
    agent.begin(SandboxAttempt(a_session_command("main", "echo begun; while :; do :; done")))
    agent.watch()
    agent.until_shown(b"begun")
    agent.end_shell()
    agent.until_finished()
    said = "session 'main' ended with this command; the next one begins another"
    assert agent.end() == {"status": KILLED_STATUS, "message": said}


@pytest.mark.parametrize("forged", [b"x::0\0", b"x:0\0", b"no end" * 20])
def test_forged_end_of_living_shell_does_not_rerun_command(agent: Agent, forged: bytes) -> None:
    a_stopped_shell_is_given(agent)
    agent.say(forged)
    agent.until_finished()
    assert "session 'main' ended with this command" in agent.end()["message"]


@pytest.mark.parametrize("forged", [b"no end", b"nonsense\0"])
def test_garbled_status_of_dead_shell_does_not_rerun_command(agent: Agent, forged: bytes) -> None:
    a_stopped_shell_is_given(agent)
    agent.say(forged)
    agent.end_shell()
    agent.until_finished()
    assert agent.end()["status"] == KILLED_STATUS


def test_unresponsive_shell_is_not_reported_as_ended(agent: Agent) -> None:
    attempt = a_stopped_shell_is_given(agent)
    attempt.cause = "timeout"
    agent.shells.attempt_killed()
    agent.until_finished()
    assert "the command did not run: the shell of the session did not respond" in agent.end()["message"]


def test_shell_dying_without_reading_is_not_replaced_repeatedly(agent: Agent) -> None:
    agent.begin(SandboxAttempt(a_session_command("main", "x=1")))
    agent.open_session()
    agent.end_shell()
    agent.watch()
    agent.until_finished()
    message = agent.end()
    assert message["status"] == KILLED_STATUS
    assert "the command did not run: the shell of the session ended before it read the command" in message["message"]


def test_command_cancelled_before_new_shell_starts_is_not_run(agent: Agent) -> None:
    attempt = a_stopped_shell_is_given(agent)
    agent.end_shell()
    agent.until_finished()
    attempt.cause = "cancelled"
    assert agent.end() == {"status": KILLED_STATUS, "message": None}


@pytest.mark.parametrize("missing", range(1, 8))
def test_session_without_enough_files_leaves_no_file_open(missing: int) -> None:
    gc.collect()  # what other tests let go of is closed now, and not while files are counted
    loop = EventLoop()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = os.dup(0)
    filling = [highest]
    while highest < 128:
        filling.append(highest := os.dup(0))
    for file in filling[-7 + missing :] if missing < 7 else ():
        os.close(file)
    held = filling[: -7 + missing] if missing < 7 else filling
    before = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
    try:
        with pytest.raises(TerminalUnavailable, match="no terminal is available"):
            ShellSession(loop, None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        after = len(os.listdir("/proc/self/fd"))
        for file in held:
            os.close(file)
    assert after == before


def test_unavailable_terminal_fails_only_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def openpty() -> tuple[int, int]:
        raise OSError(errno.ENOSPC, "No space left on device")

    said: list[str] = []
    shells = ShellManager(
        EventLoop(),
        lambda order, _files: said.append(order.mode),
        lambda _ended: said.append("finish"),
        lambda _data: None,
    )
    monkeypatch.setattr(os, "openpty", openpty)
    attempt = SandboxAttempt(a_session_command("main", "echo hello"))
    shells.begin(attempt, AgentRequest(mode="run"), None)
    shells.started()
    message = {"status": 0}
    assert not shells.handle_exit(message)
    assert said == ["watch", "finish"]
    assert "No space left" in message.pop("message", "")
    assert (attempt.cause, message) == ("setup", {})
