"""Where a client looks, and what it never tells to whom."""

import fcntl
import json
from pathlib import Path

import pytest

from arl_tangram import Unauthenticated, Unavailable, ValidationFailed
from arl_tangram.transport.connection import resolve_connection


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("TANGRAM_URL", "TANGRAM_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "endpoints.json").write_text(json.dumps({"gateway": "http://127.0.0.1:8700"}))
    (tmp_path / "api_key").write_text("tk_local\n")
    return tmp_path


def test_a_system_that_is_up_is_found_with_its_key(directory: Path) -> None:
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = resolve_connection(directory=directory)
    assert (connection.url, connection.api_key) == ("http://127.0.0.1:8700", "tk_local")


def test_after_it_went_down_nobody_on_its_old_port_gets_its_key(directory: Path) -> None:
    (directory / "lock").touch()
    with pytest.raises(Unavailable, match="tangram up"):
        resolve_connection(directory=directory)


def test_another_address_never_gets_the_local_key(directory: Path) -> None:
    with pytest.raises(Unauthenticated):
        resolve_connection("https://elsewhere.example", directory=directory)


def test_a_key_does_not_show_in_what_is_printed(directory: Path) -> None:
    assert "tk_given" not in repr(resolve_connection("https://elsewhere.example", "tk_given", directory=directory))


@pytest.mark.parametrize("url", ["localhost:8700", "127.0.0.1", "http://", "http://h:99999", "ftp://h", "http://[::1"])
def test_an_address_that_is_none_is_refused_at_once(directory: Path, url: str) -> None:
    with pytest.raises(ValidationFailed, match="url"):
        resolve_connection(url, "tk_given", directory=directory)


def test_a_key_read_from_a_file_has_no_line_break_and_one_that_is_none_is_not_shown(directory: Path) -> None:
    assert resolve_connection("http://h/", " tk_given\n", directory=directory).api_key == "tk_given"
    with pytest.raises(Unauthenticated) as caught:
        resolve_connection("http://h", "tk_gi\nven", directory=directory)
    assert "tk_gi" not in str(caught.value)


def test_an_address_with_a_slash_is_the_same_one(directory: Path) -> None:
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert resolve_connection("http://127.0.0.1:8700/", directory=directory).api_key == "tk_local"
