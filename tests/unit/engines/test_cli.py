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


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--time", "5"], "--time 5: must be at least 360 s"),
        (["--node-dir", "nodes"], "--node-dir 'nodes': must begin with / or ~"),
        (["--time", "1:00:00"], "sbatch is not on PATH: run this command on a machine that submits jobs to Slurm"),
    ],
)
def test_wrong_slurm_command_says_what_to_do(
    app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], problem: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = CliRunner().invoke(app, ["engine", "slurm", "--dir", str(tmp_path), "--pool", "cpu", *options])
    assert (done.exit_code, problem in " ".join(done.output.split())) == (EXIT_USAGE, True), done.output
