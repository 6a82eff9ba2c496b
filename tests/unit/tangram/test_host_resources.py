"""Resources that a system left on this machine, found by its directory alone."""

import fcntl
from pathlib import Path

from arl_tangram.cli.system.host_resources import HostResourceScanner


def subjects(directory: Path) -> set[str]:
    return {finding.subject for finding in HostResourceScanner(directory).findings()}


def test_files_of_dead_launcher_are_reported_as_stray(tmp_path: Path) -> None:
    work = tmp_path / "launcher" / "work" / "e0"
    work.mkdir(parents=True)
    (tmp_path / "launcher" / "lock").touch()
    assert str(work) in subjects(tmp_path)


def test_files_of_running_launcher_are_environments(tmp_path: Path) -> None:
    work = tmp_path / "launcher" / "work" / "e0"
    work.mkdir(parents=True)
    with (tmp_path / "launcher" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert str(work) not in subjects(tmp_path)
        assert HostResourceScanner(tmp_path).environments() == ({"e0"}, False)


def test_missing_directory_has_no_findings(tmp_path: Path) -> None:
    assert [finding for finding in HostResourceScanner(tmp_path / "none").findings() if "none" in finding.subject] == []
