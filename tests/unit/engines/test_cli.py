"""The command `tangram engine`: errors before a controller starts."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from arl_engines.cli import register
from arl_tangram.cli.output import EXIT_NOT_RUNNING, EXIT_USAGE


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.callback()(lambda: None)
    register(app)
    return app


@pytest.mark.parametrize(
    ("pools", "code", "problem"),
    [
        (["cpu:size=3"], EXIT_USAGE, "'size=3' is not one of"),
        (["cpu", "cpu:max=2"], EXIT_USAGE, "pool 'cpu' is given twice"),
        (["cpu"], EXIT_NOT_RUNNING, "Start one: tangram up"),
    ],
)
def test_wrong_command_says_what_to_do(
    app: typer.Typer, tmp_path: Path, pools: list[str], code: int, problem: str
) -> None:
    options = [word for pool in pools for word in ("--pool", pool)]
    done = CliRunner().invoke(app, ["engine", "local", "--dir", str(tmp_path), *options])
    assert (done.exit_code, problem in " ".join(done.output.split())) == (code, True), done.output
    assert list(tmp_path.iterdir()) == []
