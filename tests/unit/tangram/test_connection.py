"""Discovery of a running system, and the addresses that may receive its API key."""

import fcntl
import json
from pathlib import Path

import pytest

from arl_tangram import Unauthenticated, Unavailable, ValidationFailed
from arl_tangram.transport.connection import resolve_connection


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("TANGRAM_URL", "TANGRAM_API_KEY", "TANGRAM_CELL_HEADER"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "endpoints.json").write_text(json.dumps({"gateway": "http://127.0.0.1:8700"}))
    (tmp_path / "api_key").write_text("tk_local\n")
    return tmp_path


def test_running_system_is_found_with_its_key(directory: Path) -> None:
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = resolve_connection(directory=directory)
    assert (connection.url, connection.api_key) == ("http://127.0.0.1:8700", "tk_local")


def test_stopped_system_is_unavailable_and_its_key_is_not_sent(directory: Path) -> None:
    (directory / "lock").touch()
    with pytest.raises(Unavailable, match="tangram up"):
        resolve_connection(directory=directory)


def test_local_key_is_not_used_for_another_address(directory: Path) -> None:
    with pytest.raises(Unauthenticated):
        resolve_connection("https://elsewhere.example", directory=directory)


def test_api_key_is_hidden_in_repr(directory: Path) -> None:
    assert "tk_given" not in repr(resolve_connection("https://elsewhere.example", "tk_given", directory=directory))


@pytest.mark.parametrize("url", ["localhost:8700", "127.0.0.1", "http://", "http://h:99999", "ftp://h", "http://[::1"])
def test_invalid_url_is_refused_at_once(directory: Path, url: str) -> None:
    with pytest.raises(ValidationFailed, match="url"):
        resolve_connection(url, "tk_given", directory=directory)


def test_key_whitespace_is_stripped_and_invalid_key_is_not_shown(directory: Path) -> None:
    assert resolve_connection("http://h/", " tk_given\n", directory=directory).api_key == "tk_given"
    with pytest.raises(Unauthenticated) as caught:
        resolve_connection("http://h", "tk_gi\nven", directory=directory)
    assert "tk_gi" not in str(caught.value)


def test_cell_of_a_router_is_read_from_the_argument_or_the_environment(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert resolve_connection("http://h", "tk_given", directory=directory).cell is None
    monkeypatch.setenv("TANGRAM_CELL_HEADER", "2")
    assert resolve_connection("http://h", "tk_given", directory=directory).cell == 2
    assert resolve_connection("http://h", "tk_given", cell=3, directory=directory).cell == 3
    for wrong in ("0", "4096", "x", "9" * 5000):
        monkeypatch.setenv("TANGRAM_CELL_HEADER", wrong)
        with pytest.raises(ValidationFailed, match="from 1 to 4095") as caught:
            resolve_connection("http://h", "tk_given", directory=directory)
        assert caught.value.errors[0].field == "cell"


def test_trailing_slash_does_not_change_the_address(directory: Path) -> None:
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert resolve_connection("http://127.0.0.1:8700/", directory=directory).api_key == "tk_local"
