"""Test `tangram router`: its options become settings of the router, and mistakes name the option."""

import json
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from arl_tangram.cli.application import app

Started = dict[str, str]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """The environment of the router that the command becomes, after it has run."""
    variables: Started = {}

    def execute(path: str, arguments: list[str], environment: Started) -> None:
        variables.update(environment)

    for name in [name for name in os.environ if name.startswith("TANGRAM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "execve", execute)
    return variables


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["router", *arguments])


def test_options_become_settings_of_the_router(started: Started, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("t" * 32 + "\n")
    done = run(
        *("--cell", "1=http://a", "--cell", "02=http://b", "--weight", "2=0", "--listen", "::1"),
        *("--connections", "7", "--metrics-token-file", str(token)),
    )
    assert (done.exit_code, "at http://[::1]:8600" in done.output) == (0, True)
    assert json.loads(started["TANGRAM_CELLS"]) == {"1": "http://a", "2": "http://b"}
    assert json.loads(started["TANGRAM_CELL_WEIGHTS"]) == {"2": 0.0}
    assert started["TANGRAM_CELL_CONNECTIONS"] == "7"
    assert started["TANGRAM_METRICS_TOKEN_HASH"] == sha256(b"t" * 32).hexdigest()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--cell", "1=http://a", "--cell", "01=http://b"), "--cell: cell 1 is given twice"),
        (("--cell", f"{'9' * 5000}=http://a"), "a number from 1 to 4095"),
        (("--cell", "1=a"), "--cell: the URL of cell 1 must begin with http://"),
        (("--cell", "1=http://a", "--weight", "2=1"), "--weight or --fallback name cell 2"),
        (
            ("--cell", "1=http://a", "--metrics-token-file", "/nonexistent"),
            "--metrics-token-file /nonexistent: No such",
        ),
    ],
    ids=["twice", "digits", "url", "weight", "token"],
)
def test_mistake_names_the_option_and_starts_nothing(
    started: Started, arguments: tuple[str, ...], problem: str
) -> None:
    done = run(*arguments)
    assert (done.exit_code, problem in done.output, "router of" in done.output) == (2, True, False), done.output
    assert not started
