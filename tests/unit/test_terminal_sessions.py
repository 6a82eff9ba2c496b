"""The launcher's side of a session; the shell's side is played by the tests."""

import os
from collections.abc import Iterator

import pytest

from arl_cpu.launcher.loop import Loop
from arl_cpu.launcher.sessions import KILLED, Session


class Played:
    """A session, and its shell's files."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.session = Session(self.loop, None)
        ends = [os.dup(end) for end in self.session.ends]
        self.session.handed_over()
        self.terminal, self.commands, self.statuses = ends[0], ends[3], ends[4]
        self.files = ends
        self.shown = b""
        self.ended: list[int] = []

    def run(self, command: str) -> None:
        self.session.run(command, self._show, self.ended.append, None)

    def until_ended(self) -> int:
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


def test_the_end_of_a_shell_is_the_end_of_the_command_that_it_was_in(played: Played) -> None:
    played.run("exit 3")
    os.write(played.statuses, b"x:1:3\0")
    assert played.until_ended() == 3 << 8
    assert (played.session.is_open, played.session.why_not_run) == (False, None)


@pytest.mark.parametrize("said", [b"x::0\0", b"x:1:0\0", b"x:0\0"])
def test_a_shell_that_ends_before_it_reads_a_command_says_nothing_of_it(played: Played, said: bytes) -> None:
    played.run("true")
    os.write(played.statuses, b"1:0\0")
    assert played.until_ended() == 0
    played.run("echo never")
    os.write(played.statuses, said)
    assert played.until_ended() == KILLED
    assert not played.session.is_open
    assert "ended before it read it" in (played.session.why_not_run or "")
