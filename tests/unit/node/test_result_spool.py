"""Test the files of results that wait for Postgres."""

import stat
from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4

import pytest

from arl_core.domain.model import Fence
from arl_node.result_spool import ResultSpool, SpooledResult

MAX_BYTES = 1 << 20


def a_result(size: int = 10) -> SpooledResult:
    return SpooledResult(fence=Fence(uuid4(), 3), epoch=uuid4(), body=b"\n" * size)


def filled(directory: Path, results: Iterable[SpooledResult]) -> ResultSpool:
    spool = ResultSpool(directory, max_bytes=MAX_BYTES)
    for result in results:
        assert spool.write([result]) is None
    return spool


def test_next_process_reads_the_results_in_the_order_of_their_writes(tmp_path: Path) -> None:
    results = [a_result() for _ in range(12)]
    filled(tmp_path / "s", results[:11])
    second = ResultSpool(tmp_path / "s", max_bytes=MAX_BYTES)
    second.scan()
    second.write(results[11:])
    third = ResultSpool(tmp_path / "s", max_bytes=MAX_BYTES)
    assert [third.read(fence) for fence in third.scan()] == results


def test_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    filled(tmp_path / "s", [a_result()])
    [file] = (tmp_path / "s").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o700


def test_result_beyond_the_bound_is_refused_and_older_results_stay(tmp_path: Path) -> None:
    old = [a_result(MAX_BYTES // 3) for _ in range(2)]
    spool = filled(tmp_path / "s", old)
    large, small = a_result(MAX_BYTES // 3), a_result()
    problem = spool.write([large, small])
    assert problem is not None
    assert "TANGRAM_SPOOL_MIB" in problem
    assert [large.fence in spool, small.fence in spool] == [False, True], "a smaller one may still fit"
    assert [spool.read(each.fence) for each in old] == old
    assert spool.used_bytes == sum(path.stat().st_size for path in (tmp_path / "s").iterdir()) <= MAX_BYTES


def test_removal_frees_the_bytes_and_the_empty_directory(tmp_path: Path) -> None:
    first, second = a_result(MAX_BYTES // 2), a_result(MAX_BYTES // 2)
    spool = filled(tmp_path / "s", [first])
    assert spool.write([second]) is not None
    spool.remove([first.fence])
    assert spool.write([second]) is None
    spool.remove([second.fence, first.fence])
    assert (len(spool), spool.used_bytes, (tmp_path / "s").exists()) == (0, 0, False)


def test_result_is_written_once(tmp_path: Path) -> None:
    result = a_result()
    spool = filled(tmp_path / "s", [result, result])
    assert len(spool) == len(list((tmp_path / "s").iterdir())) == 1


@pytest.mark.parametrize("left", ["", "tangram-result-1 ", "all but one byte"])
def test_write_torn_by_a_crash_is_no_result(tmp_path: Path, left: str) -> None:
    """A file system may keep the name of a file and lose its content."""
    torn, whole = a_result(), a_result()
    filled(tmp_path / "s", [torn, whole])
    file = min((tmp_path / "s").iterdir())
    file.write_bytes(file.read_bytes()[:-1] if left == "all but one byte" else left.encode())
    again = ResultSpool(tmp_path / "s", max_bytes=MAX_BYTES)
    assert [again.read(fence) for fence in again.scan()] == [None, whole]


def test_unfinished_file_of_a_crashed_process_is_removed(tmp_path: Path) -> None:
    whole = a_result()
    filled(tmp_path / "s", [whole])
    [file] = (tmp_path / "s").iterdir()
    unfinished = file.with_name(f"000000000002.{uuid4()}.1.result.unfinished")
    unfinished.write_bytes(file.read_bytes()[:5])
    assert ResultSpool(tmp_path / "s", max_bytes=MAX_BYTES).scan() == (whole.fence,)
    assert not unfinished.exists()


def test_directory_that_cannot_be_written_is_a_named_problem(tmp_path: Path) -> None:
    (tmp_path / "s").touch()
    spool = ResultSpool(tmp_path / "s", max_bytes=MAX_BYTES)
    assert spool.scan() == ()
    problem = spool.write([a_result()])
    assert problem is not None
    assert str(tmp_path / "s") in problem
    assert len(spool) == 0
