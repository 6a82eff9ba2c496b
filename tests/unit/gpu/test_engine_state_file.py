"""The state file of an engine: its last order is valid only for the process that received it."""

from pathlib import Path

import pytest

from arl_gpu.worker.engine_state_file import EngineStateFile


@pytest.fixture
def last(tmp_path: Path) -> EngineStateFile:
    return EngineStateFile(tmp_path / "engines" / "e.json")


def test_engine_without_orders_or_woken_last_is_awake(last: EngineStateFile) -> None:
    assert last.is_asleep(lambda: None) is False
    last.save("a", sleeps=True)
    last.save("a", sleeps=False)
    assert last.is_asleep(lambda: "a", asleep=True) is False


@pytest.mark.parametrize(
    ("then", "sleeps", "now", "found"),
    [
        ("a", True, "a", True),
        ("a", True, "b", False),
        ("a", None, "b", False),
        ("a", None, "a", None),
        ("a", True, None, None),
        (None, True, "a", None),
    ],
)
def test_saved_state_is_valid_only_for_same_process(
    last: EngineStateFile, then: str | None, sleeps: bool | None, now: str | None, found: bool | None
) -> None:
    last.save(then, sleeps=sleeps)
    assert last.is_asleep(lambda: now) is found


@pytest.mark.parametrize(
    ("then", "sleeps", "now", "found"),
    [
        (None, True, None, True),
        (None, True, "a", True),
        ("a", True, None, True),
        ("a", True, "b", False),
        (None, None, None, None),
        ("a", None, None, None),
    ],
)
def test_sleeping_engine_stays_asleep_unless_state_or_process_changed(
    last: EngineStateFile, then: str | None, sleeps: bool | None, now: str | None, found: bool | None
) -> None:
    last.save(then, sleeps=sleeps)
    assert last.is_asleep(lambda: now, asleep=True) is found


def test_missing_state_file_returns_the_callers_state(tmp_path: Path, last: EngineStateFile) -> None:
    last.save("a", sleeps=True)
    (tmp_path / "engines" / "e.json").unlink()
    assert [last.is_asleep(lambda: "a", asleep=asleep) for asleep in (False, True)] == [False, True]


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "\\xff"])
def test_unreadable_state_file_gives_unknown_state(tmp_path: Path, content: str) -> None:
    (tmp_path / "e.json").write_text(content)
    assert EngineStateFile(tmp_path / "e.json").is_asleep(lambda: "a", asleep=True) is None
