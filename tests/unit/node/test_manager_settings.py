"""Test where a node stores results that wait for Postgres."""

from pathlib import Path
from typing import Any

import pytest

from arl_node.settings import ManagerSettings

URL = "postgresql://role:secret@db:5432/tangram"


def the_path(**changed: Any) -> Path:
    values = {"port": 1, "database_url": URL, "service_token": "t" * 16, "scheduler_url": "http://s", "node_name": "n"}
    return ManagerSettings(**(values | changed)).spool_path


def test_nodes_that_share_a_spool_directory_have_directories_of_their_own(tmp_path: Path) -> None:
    names = ["n", "m", "a/b", "../n", "x" * 128, "x" * 127 + "y"]
    paths = {the_path(node_name=name, spool_dir=tmp_path) for name in names}
    assert len(paths) == len(names)
    assert {path.parent for path in paths} == {tmp_path}
    assert the_path(spool_dir=tmp_path) == the_path(spool_dir=tmp_path, database_url="postgresql://x:y@other/db")


def test_default_spool_directory_is_in_the_state_directory_and_one_for_each_database(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    default = the_path()
    assert default.is_relative_to(tmp_path / ".local" / "state" / "tangram" / "spool")
    assert default == the_path(database_url=URL.replace("role:secret", "other:password")), "a login is no address"
    urls = ["postgresql://r:s@db/other", "postgresql://r:s@/tangram?host=/a", "postgresql://r:s@/tangram?host=/b"]
    assert len({default, *(the_path(database_url=url) for url in urls)}) == 4
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert the_path().is_relative_to(tmp_path / "state" / "tangram" / "spool")
