"""Failpoints do nothing unless they are set; a set failpoint acts at exactly its hits."""

import os
import signal

import pytest
from pydantic import ValidationError

from arl_kit.failpoints import Failpoints
from arl_kit.settings import ServiceSettings


def signal_of(setting: str, hits: list[str]) -> int:
    """Return the signal that ended a process after the given hits, or 0."""
    child = os.fork()
    if child == 0:
        try:
            failpoints = Failpoints(setting)
            for name in hits:
                failpoints.hit(name)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) * -1


def test_unset_failpoints_do_nothing() -> None:
    assert signal_of("", ["a", "b"]) == 0


def test_kill_failpoint_ends_process_at_its_hit() -> None:
    assert signal_of("a=kill:2", ["a", "b"]) == 0
    assert signal_of("b=kill:1,a=kill:2", ["a", "a"]) == signal.SIGKILL


def test_stop_failpoint_stops_process_at_each_counted_hit() -> None:
    child = os.fork()
    if child == 0:
        failpoints = Failpoints("a=stop:2")
        for _ in range(5):
            failpoints.hit("a")
        os._exit(0)
    for _ in range(2):
        assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
        os.kill(child, signal.SIGCONT)
    assert os.waitpid(child, os.WUNTRACED)[1] == 0


@pytest.mark.parametrize("wrong", ["a", "a=kill", "a=kill:0", "a=sleep:1", "=kill:1", "a=kill:x"])
def test_invalid_failpoint_is_rejected_at_start_up(wrong: str) -> None:
    with pytest.raises(ValidationError, match="not a failpoint"):
        ServiceSettings(port=1, database_url="postgresql://x", service_token="t" * 16, failpoints=wrong)
