"""A system of a benchmark's own: fresh state, a driver of its choice, gone afterwards."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arl_tangram.bench.cpu_time import tree_cpu_s
from arl_tangram.client import AsyncTangram
from arl_wire.errors import Unavailable

__all__ = ["NoSandbox", "OwnSystem", "own_system"]

START_S = 120.0
STOP_S = 60.0
LOOK_S = 0.05
EXIT_NO_SANDBOX = 5


class NoSandbox(Unavailable):
    """No driver works on this machine."""


@dataclass(frozen=True, slots=True)
class OwnSystem:
    """Up and ready. `pid` is its supervisor's; every other process of it is a descendant."""

    directory: Path
    pid: int

    def client(self) -> AsyncTangram:
        """Of this system, whatever the environment says of another."""
        return AsyncTangram(self.url_of("gateway"), (self.directory / "api_key").read_text())

    def url_of(self, service: str) -> str:
        """Where a service answers on this machine."""
        found: dict[str, str] = json.loads((self.directory / "endpoints.json").read_text())
        return found[service]

    def processes(self) -> dict[str, int]:
        """Pid of each process by name, the supervisor's too."""
        found: dict[str, Any] = json.loads((self.directory / "processes.json").read_text())
        return {"supervisor": self.pid} | {name: int(entry["pid"]) for name, entry in found["processes"].items()}

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds used so far by each process with its descendants; the supervisor's without the others."""
        used = {name: tree_cpu_s(pid) for name, pid in self.processes().items()}
        used["supervisor"] -= sum(seconds for name, seconds in used.items() if name != "supervisor")
        return used


@contextmanager
def own_system(
    *,
    driver: str = "namespaces",
    cores: int | None = None,
    nodes: int = 1,
    environment: Mapping[str, str] | None = None,
) -> Iterator[OwnSystem]:
    """Simulated nodes may be several, of so many cores each.

    Raises `Unavailable` with the system's last words if it does not come up.
    """
    with tempfile.TemporaryDirectory(prefix="tangram-bench-", ignore_cleanup_errors=True) as path:
        directory = Path(path)
        command = [sys.executable, "-m", "arl_kit.local", "--dir", path]
        options = ["--driver", driver, "--nodes", str(nodes), *(("--cores", str(cores)) if cores else ())]
        with (directory / "up.log").open("wb") as words:
            process = subprocess.Popen(
                [*command, *options, "--until-eof"],
                stdin=subprocess.PIPE,
                stdout=words,
                stderr=words,
                env=_surroundings() | dict(environment or {}),
                start_new_session=True,
            )
        try:
            _wait_until_ready(directory, process)
            yield OwnSystem(directory, process.pid)
        finally:
            _stop(process)
            subprocess.run([*command, "--purge"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def _surroundings() -> dict[str, str]:
    """Of this process, without a database that others use."""
    return {name: value for name, value in os.environ.items() if name != "TANGRAM_DATABASE_URL"}


def _wait_until_ready(directory: Path, process: subprocess.Popen[bytes]) -> None:
    ends_at = time.monotonic() + START_S
    while _phase(directory) != "ready":
        if process.poll() is not None or time.monotonic() > ends_at:
            words = (directory / "up.log").read_text(errors="replace").strip()
            what = NoSandbox if process.returncode == EXIT_NO_SANDBOX else Unavailable
            raise what(words or f"the system did not come up (exit code {process.returncode})")
        time.sleep(LOOK_S)


def _phase(directory: Path) -> str | None:
    try:
        return str(json.loads((directory / "processes.json").read_text())["phase"])
    except (OSError, ValueError, KeyError):
        return None


def _stop(process: subprocess.Popen[bytes]) -> None:
    """It drains when its standard input ends."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
