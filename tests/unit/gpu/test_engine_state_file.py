"""What is kept of an engine's last order: believed of the process that had it, and of no other."""

from pathlib import Path

import pytest

from arl_gpu.worker.engine_state_file import EngineStateFile


@pytest.fixture
def last(tmp_path: Path) -> EngineStateFile:
    return EngineStateFile(tmp_path / "engines" / "e.json")


def test_one_that_was_told_nothing_or_woken_last_is_awake(last: EngineStateFile) -> None:
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
def test_it_is_believed_of_the_same_process_and_another_one_is_awake(
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
def test_who_put_it_to_sleep_knows_so_unless_it_was_told_more_since_or_another_has_begun(
    last: EngineStateFile, then: str | None, sleeps: bool | None, now: str | None, found: bool | None
) -> None:
    last.save(then, sleeps=sleeps)
    assert last.is_asleep(lambda: now, asleep=True) is found


def test_without_a_file_it_is_awake_unless_whoever_asks_put_it_to_sleep(tmp_path: Path, last: EngineStateFile) -> None:
    last.save("a", sleeps=True)
    (tmp_path / "engines" / "e.json").unlink()
    assert [last.is_asleep(lambda: "a", asleep=asleep) for asleep in (False, True)] == [False, True]


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "\\xff"])
def test_a_file_that_can_not_be_read_says_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "e.json").write_text(content)
    assert EngineStateFile(tmp_path / "e.json").is_asleep(lambda: "a", asleep=True) is None
