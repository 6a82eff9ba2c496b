"""File trees that change while they are packed or unpacked; files outside are neither read nor written."""

import io
import os
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from arl_cpu.launcher.files.archives import pack, unpack
from arl_cpu.launcher.files.file_tree import MAX_CURSOR_BYTES, MAX_DEPTH, FileAccessError, FileTree, list_entries
from arl_cpu.launcher.files.workdir import remove

ROUNDS = 200


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "f").write_text("secret")
    (tmp_path / "inside" / "d").mkdir(parents=True)
    (tmp_path / "inside" / "d" / "f").write_text("own")
    opened = os.open(tmp_path / "inside", os.O_PATH | os.O_DIRECTORY)
    yield opened
    os.close(opened)


@contextmanager
def swapped(directory: Path) -> Iterator[None]:
    """Keep replacing `d` by nothing, by a link that leads outside and by the directory again."""
    ended = threading.Event()

    def swap() -> None:
        while not ended.is_set():
            with suppress(OSError):
                (directory / "d").rename(directory / "kept")
                (directory / "d").symlink_to("../outside")
                (directory / "d").unlink()
                (directory / "kept").rename(directory / "d")

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        yield
    finally:
        ended.set()
        swapper.join()


def packed(root: int) -> bytes:
    target = io.BytesIO()
    pack(FileTree(root, ""), target)
    return target.getvalue()


def test_pack_never_follows_directory_swapped_for_link(root: int, tmp_path: Path) -> None:
    with swapped(tmp_path / "inside"):
        for _ in range(ROUNDS):
            with suppress(FileAccessError, OSError):
                assert b"secret" not in packed(root)


def test_unpack_never_writes_through_directory_swapped_for_link(root: int, tmp_path: Path) -> None:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name in ("d/f", "d/new", "d/sub/new"):
            archive.addfile(tarfile.TarInfo(name))
    with swapped(tmp_path / "inside"):
        for _ in range(ROUNDS):
            with suppress(FileAccessError):
                unpack(io.BytesIO(target.getvalue()), root, "", max_bytes=1 << 20)  # type: ignore[arg-type]
    assert [path.name for path in (tmp_path / "outside").iterdir()] == ["f"]
    assert (tmp_path / "outside" / "f").read_text() == "secret"


def test_too_deep_tree_is_refused_without_leaking_files(root: int, tmp_path: Path) -> None:
    directory = os.dup(root)
    for _ in range(MAX_DEPTH + 1):
        os.mkdir("d2", dir_fd=directory)
        below = os.open("d2", os.O_RDONLY | os.O_DIRECTORY, dir_fd=directory)
        os.close(directory)
        directory = below
    os.close(directory)
    tree = FileTree(root, "")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileAccessError, match="deep"):
        pack(tree, io.BytesIO())
    assert len(os.listdir("/proc/self/fd")) <= before  # what other tests let go of may be closed meanwhile
    remove(tmp_path / "inside" / "d2")


def test_listing_continues_after_a_deleted_cursor_entry(root: int, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / "inside" / name).touch()
    first = list_entries(FileTree(root, ""), recursive=True, limit=2, after=None)
    (tmp_path / "inside" / "b").unlink()
    after = bytes.fromhex(first["next"]).decode()
    rest = list_entries(FileTree(root, ""), recursive=True, limit=10, after=after)
    assert [entry["path"] for entry in rest["entries"]] == ["c", "d", "d/f"]


@pytest.mark.parametrize(
    ("mtime", "shown"),
    [
        (-5, "1970-01-01T00:00:00+00:00"),
        (30_000_000_000, "2920-08-30T05:20:00+00:00"),
        (100_000_000_000_000, "9999-12-31T23:59:59+00:00"),
    ],
)
def test_listing_clamps_extreme_modification_times(root: int, tmp_path: Path, mtime: int, shown: str) -> None:
    os.utime(tmp_path / "inside" / "d", (0, mtime))
    if os.stat(tmp_path / "inside" / "d").st_mtime != mtime:
        pytest.skip("this file system does not support this time")
    (entry,) = list_entries(FileTree(root, ""), recursive=False, limit=10, after=None)["entries"]
    assert entry["modified_at"] == shown


def test_listing_refuses_cursor_path_that_is_too_long(root: int, tmp_path: Path) -> None:
    directory, name = os.dup(root), "e" * 250
    for _ in range(MAX_CURSOR_BYTES // len(name) + 1):
        os.mkdir(name, dir_fd=directory)
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=directory)
        os.close(directory)
        directory = below
    os.mkdir("last", dir_fd=directory)
    os.close(directory)
    deepest = 2 + MAX_CURSOR_BYTES // len(name) + 1
    with pytest.raises(FileAccessError, match="cannot continue after a path"):
        list_entries(FileTree(root, ""), recursive=True, limit=deepest, after=None)
    assert list_entries(FileTree(root, ""), recursive=True, limit=deepest + 1, after=None)["next"] is None
    remove(tmp_path / "inside" / name)
