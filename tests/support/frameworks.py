"""The environments with the packages of frameworks, which `make test-frameworks` installs."""

import asyncio
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.system import API_KEY, System

__all__ = ["FRAMEWORKS_PYTHON", "NEWER_PYTHON", "run_framework", "skip_without"]

_ROOT = Path(__file__).parents[2]
FRAMEWORKS_PYTHON = _ROOT / ".frameworks" / "bin" / "python"
NEWER_PYTHON = _ROOT / ".frameworks-newer" / "bin" / "python"
"""Python 3.12 or newer, with the frameworks that need it."""
TIMEOUT_S = 300.0


def skip_without(package: str, python: Path = FRAMEWORKS_PYTHON) -> None:
    """Skip the test if the environment does not exist or lacks the package."""
    check = (python, "-c", f"from importlib.metadata import version; version({package!r})")
    if not python.exists() or subprocess.run(check, capture_output=True, check=False).returncode:
        pytest.skip(f"{package} is not installed in {python.parents[1].name}: make test-frameworks")


async def run_framework(
    system: System,
    *arguments: str | Path,
    variables: Mapping[str, str] | None = None,
    python: Path = FRAMEWORKS_PYTHON,
) -> subprocess.CompletedProcess[str]:
    """Run Python with the frameworks, connected to the system, and return what it printed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TANGRAM_")}
    connection = {"TANGRAM_URL": system.url, "TANGRAM_API_KEY": API_KEY}
    return await asyncio.to_thread(
        subprocess.run,
        (python, *arguments),
        env=kept | connection | dict(variables or {}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
