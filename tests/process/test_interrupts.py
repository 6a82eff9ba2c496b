"""Test that Ctrl-C ends every command with its exit code and without a traceback, also while it still imports."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.conditions import eventually

COMMANDS = (("--help",), ("status",), ("submit", "--", "true"), ("demo",), ("bench", "--help"), ("up", "-d"))
STOPPED_IN = """\
import importlib.abc, os, sys
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            open({begun!r}, "w").close()
            import time
            while True:
                time.sleep(1)
sys.meta_path.insert(0, Finder())
"""
"""Stops in the import of a module, so that a test can interrupt exactly there."""

INTERRUPTIBLE = """\
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, "-m", "arl_tangram.cli", *sys.argv[1:]])
"""
"""Runs the command line with Ctrl-C enabled, which nohup disables."""


async def interrupted_in(module: str, command: tuple[str, ...], tmp_path: Path) -> tuple[int, str]:
    begun = tmp_path / "begun"
    (tmp_path / "sitecustomize.py").write_text(STOPPED_IN.format(module=module, begun=str(begun)))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TANGRAM_")}
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", INTERRUPTIBLE, *command],
        env=environment | {"PYTHONPATH": str(tmp_path), "TANGRAM_DIR": str(tmp_path / "state")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        await eventually(lambda: begun.exists() or process.poll() is not None, timeout_s=60)
        assert begun.exists(), process.communicate()[1]
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    return process.returncode, said


@pytest.mark.parametrize("module", ["arl_tangram.cli.application", "typer", "httpx", "pydantic", "arl_tangram.client"])
async def test_interrupt_during_the_imports_exits_with_130(module: str, tmp_path: Path) -> None:
    assert await interrupted_in(module, ("status",), tmp_path) == (130, "")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
async def test_interrupted_command_that_still_imports_exits_with_130(command: tuple[str, ...], tmp_path: Path) -> None:
    assert await interrupted_in("rich", command, tmp_path) == (130, "")


@pytest.mark.parametrize(
    ("command", "module"), [(("demo",), "arl_bench.cli.demo"), (("bench",), "arl_bench.cli.bench")]
)
async def test_interrupt_while_another_distribution_is_imported_prints_no_traceback(
    command: tuple[str, ...], module: str, tmp_path: Path
) -> None:
    code, said = await interrupted_in(module, command, tmp_path)
    assert code == 130
    assert "Traceback" not in said
