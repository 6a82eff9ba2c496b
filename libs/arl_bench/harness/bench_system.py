"""A separate system for a benchmark, with fresh state and a chosen driver. It is removed at the end."""

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

import httpx

from arl_bench.harness.process_usage import tree_cpu_s
from arl_tangram.async_client import AsyncTangram
from arl_wire.errors import Unavailable

__all__ = [
    "EXCLUSIVE_CORES",
    "POLL_INTERVAL_S",
    "START_TIMEOUT_S",
    "BenchSystem",
    "NoSandbox",
    "bench_system",
    "read_phase",
    "stop_supervisor",
]

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.05
EXIT_NO_SANDBOX = 5


class NoSandbox(Unavailable):
    """No driver works on this machine."""


@dataclass(frozen=True, slots=True)
class BenchSystem:
    """A running system. `pid` is its supervisor's; every other process of it is a descendant."""

    directory: Path
    pid: int

    def client(self) -> AsyncTangram:
        """Create a client of this system. Environment variables for other systems are ignored."""
        return AsyncTangram(self.service_url("gateway"), (self.directory / "api_key").read_text())

    def service_url(self, service: str) -> str:
        """Return the address of a service on this machine."""
        found: dict[str, str] = json.loads((self.directory / "endpoints.json").read_text())
        return found[service]

    async def read_metrics(self, service: str) -> str:
        """Return the Prometheus metrics of an internal service."""
        token = (self.directory / "metrics_token").read_text()
        async with httpx.AsyncClient(timeout=60.0, headers={"Authorization": f"Bearer {token}"}) as client:
            return (await client.get(f"{self.service_url(service)}/metrics")).raise_for_status().text

    def process_pids(self) -> dict[str, int]:
        """Return the pid of each process by name, including the supervisor."""
        found: dict[str, Any] = json.loads((self.directory / "processes.json").read_text())
        return {"supervisor": self.pid} | {name: int(entry["pid"]) for name, entry in found["processes"].items()}

    def cpu_s(self) -> dict[str, float]:
        """Return the CPU seconds of each process with its descendants. The supervisor's exclude the other processes."""
        used = {name: tree_cpu_s(pid) for name, pid in self.process_pids().items()}
        used["supervisor"] -= sum(seconds for name, seconds in used.items() if name != "supervisor")
        return used


EXCLUSIVE_CORES = {"TANGRAM_CPU_FORM": "exclusive"}
"""Setting of a system whose actions get whole, pinned cores."""


@contextmanager
def bench_system(
    *,
    driver: str = "namespaces",
    cores: int | None = None,
    nodes: int = 1,
    listen: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[BenchSystem]:
    """Run a separate system. Several nodes with `cores` each are possible if they are simulated.

    With `listen`, an address of this machine, other nodes can join it.

    Raises `Unavailable` with the last output of the system if it does not start.
    """
    with tempfile.TemporaryDirectory(prefix="tangram-bench-", ignore_cleanup_errors=True) as path:
        directory = Path(path)
        command = [sys.executable, "-m", "arl_local", "--dir", path]
        options = ["--driver", driver, "--nodes", str(nodes), *(("--cores", str(cores)) if cores else ())]
        options += ["--listen", listen] if listen else []
        with (directory / "up.log").open("wb") as words:
            process = subprocess.Popen(
                [*command, *options, "--until-eof"],
                stdin=subprocess.PIPE,
                stdout=words,
                stderr=words,
                env=_inherited_environment() | dict(environment or {}),
                start_new_session=True,
            )
        try:
            _wait_until_ready(directory, process)
            yield BenchSystem(directory, process.pid)
        finally:
            stop_supervisor(process)
            subprocess.run([*command, "--purge"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def _inherited_environment() -> dict[str, str]:
    """Return the environment of this process without a database that others use."""
    return {name: value for name, value in os.environ.items() if name != "TANGRAM_DATABASE_URL"}


def _wait_until_ready(directory: Path, process: subprocess.Popen[bytes]) -> None:
    ends_at = time.monotonic() + START_TIMEOUT_S
    while read_phase(directory) != "ready":
        if process.poll() is not None or time.monotonic() > ends_at:
            words = (directory / "up.log").read_text(errors="replace").strip()
            what = NoSandbox if process.returncode == EXIT_NO_SANDBOX else Unavailable
            raise what(words or f"the system did not come up (exit code {process.returncode})")
        time.sleep(POLL_INTERVAL_S)


def read_phase(directory: Path) -> str | None:
    """Return the phase that a supervisor has published, or None."""
    try:
        return str(json.loads((directory / "processes.json").read_text())["phase"])
    except (OSError, ValueError, KeyError):
        return None


def stop_supervisor(process: subprocess.Popen[bytes]) -> None:
    """Close the standard input of the supervisor, which makes it drain, and wait for its end."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
