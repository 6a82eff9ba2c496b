"""Test the ranges of host ids that launchers of one machine share."""

from pathlib import Path

import pytest

from arl_cpu.launcher.linux.id_ranges import IDS_PER_ENVIRONMENT, IdRanges

RANGES_PER_BLOCK = 64


def test_launchers_of_a_machine_take_different_ranges(tmp_path: Path) -> None:
    first, second = IdRanges(tmp_path, 3), IdRanges(tmp_path, 3)
    taken = [each.take() for each in (first, second) for _ in range(RANGES_PER_BLOCK + 1)]
    assert len(set(taken)) == len(taken)
    assert {each % IDS_PER_ENVIRONMENT for each in taken} == {0}
    assert min(taken) >= 1 << 31
    assert max(taken) + IDS_PER_ENVIRONMENT < 1 << 32


def test_released_range_is_taken_again_and_a_closed_launcher_frees_its_blocks(tmp_path: Path) -> None:
    first, second = IdRanges(tmp_path, 0), IdRanges(tmp_path, 0)
    taken = first.take()
    assert second.take() != taken
    first.release(taken)
    assert first.take() == taken
    first.close()
    assert IdRanges(tmp_path, 0).take() == taken


def test_no_free_block_is_reported_as_an_error(tmp_path: Path) -> None:
    first, second = IdRanges(tmp_path, 510), IdRanges(tmp_path, 0)
    for _ in range(511 * RANGES_PER_BLOCK):
        first.take()
    with pytest.raises(OSError, match="every range of ids is used"):
        second.take()
    first.close()
    assert second.take() >= 1 << 31
