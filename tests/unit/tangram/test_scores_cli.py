"""Progress messages of `tangram score` during a long wait."""

import threading

import pytest

from arl_tangram.cli import reward_services
from arl_tangram.cli.reward_services import report_long_wait


class Heard:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.something = threading.Event()

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        self.something.set()


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    heard = Heard()
    monkeypatch.setattr(reward_services, "print_progress", heard)
    return heard


def test_long_score_wait_prints_how_to_check_service_state(heard: Heard) -> None:
    with report_long_wait("minilm", after_s=0):
        assert heard.something.wait(30)
    assert heard.lines == ["waiting for reward service minilm; its state: tangram reward-services list"]


def test_immediate_score_prints_nothing_and_leaves_no_timer(heard: Heard) -> None:
    before = threading.active_count()
    with report_long_wait("minilm", after_s=3600):
        [timer] = [each for each in threading.enumerate() if isinstance(each, threading.Timer)]
    timer.join(30)
    assert (threading.active_count(), heard.lines) == (before, [])
