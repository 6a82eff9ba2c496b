"""Failpoints do nothing unless they are set, and then exactly what was said."""

import os
import signal

import pytest
from pydantic import ValidationError

from arl_kit.failpoints import Failpoints
from arl_kit.settings import ServiceSettings


def signal_of(setting: str, hits: list[str]) -> int:
    """The signal that ended a process which hit these, or 0."""
    child = os.fork()
    if child == 0:
        try:
            failpoints = Failpoints(setting)
            for name in hits:
                failpoints.hit(name)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) * -1


def test_without_a_setting_nothing_happens() -> None:
    assert signal_of("", ["a", "b"]) == 0


def test_the_process_dies_at_the_hit_that_was_named() -> None:
    assert signal_of("a=kill:2", ["a", "b"]) == 0
    assert signal_of("b=kill:1,a=kill:2", ["a", "a"]) == signal.SIGKILL


def test_a_process_stands_still_at_each_such_hit() -> None:
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
def test_a_wrong_one_is_refused_at_boot(wrong: str) -> None:
    with pytest.raises(ValidationError, match="not a failpoint"):
        ServiceSettings(port=1, database_url="postgresql://x", service_token="t" * 16, failpoints=wrong)
