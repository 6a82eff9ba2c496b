"""A system started by `tangram up`: real command line, supervisor, Postgres, launcher and services."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arl_tangram import AsyncTangram, Tangram
from arl_tangram.cli.local_state import LocalState
from arl_tangram.transport.connection import resolve_connection
from support.conditions import eventually

__all__ = ["Machine", "a_machine", "an_armed_machine"]

UP_S = 90.0
ARMED = Path(__file__).with_name("armed_machine.py")


@dataclass(frozen=True)
class Machine:
    directory: Path

    def cli(
        self,
        *arguments: str,
        check: bool = True,
        stdin: str = "",
        variables: Mapping[str, str] | None = None,
        timeout_s: float = UP_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of this system. Without `check` the caller checks the exit code."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TANGRAM_")}
        done = subprocess.run(
            [sys.executable, "-m", "arl_tangram.cli", *arguments],
            env=environment | {"TANGRAM_DIR": str(self.directory)} | dict(variables or {}),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if check and done.returncode:
            said = f"{done.stdout}{done.stderr}"
            raise AssertionError(f"tangram {' '.join(arguments)} ended with {done.returncode}:\n{said}")
        return done

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command of this system and return its process."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TANGRAM_")}
        return subprocess.Popen(
            [sys.executable, "-m", "arl_tangram.cli", *arguments],
            env=environment | {"TANGRAM_DIR": str(self.directory)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.cli("status", "-o", "json", check=False).stdout)
        return found

    def pid_of(self, process: str) -> int:
        return int(self.status()["processes"][process]["pid"])

    def ready_pid_of(self, process: str) -> int | None:
        """Return the process id from the supervisor's file, or None while the process is not ready."""
        entry = json.loads((self.directory / "processes.json").read_text())["processes"][process]
        return entry["pid"] if entry["state"] == "ready" else None

    def pids(self) -> set[int]:
        status = self.status()
        return {int(entry["pid"]) for entry in status["processes"].values()} | {int(status["supervisor"]["pid"])}

    def kill(self, process: str) -> None:
        os.kill(self.pid_of(process), signal.SIGKILL)

    def arm(self, service: str, failpoint: str) -> None:
        """Arm a failpoint for the service's next starts, until disarmed. Needs an armed machine."""
        (self.directory / f"{service}.failpoint").write_text(f"{failpoint}=kill:1")

    def disarm(self, service: str) -> None:
        (self.directory / f"{service}.failpoint").unlink()

    def log(self, process: str) -> str:
        return (self.directory / "logs" / f"{process}.log").read_text(errors="replace")

    def client(self) -> Tangram:
        connection = resolve_connection(directory=self.directory)
        return Tangram(connection.url, connection.api_key)

    def async_client(self) -> AsyncTangram:
        connection = resolve_connection(directory=self.directory)
        return AsyncTangram(connection.url, connection.api_key)


@contextmanager
def a_machine(directory: Path, *flags: str, **variables: str) -> Iterator[Machine]:
    """Start a system and yield it when it is ready; stop and purge it at the end."""
    machine = Machine(directory)
    machine.cli("up", "--detach", *flags, variables=variables)
    try:
        yield machine
    finally:
        machine.cli("down", "--purge")


@asynccontextmanager
async def an_armed_machine(directory: Path) -> AsyncIterator[Machine]:
    """Start a system like `a_machine`, with services that can be killed at failpoints."""
    machine, state = Machine(directory), LocalState(directory)
    supervisor = subprocess.Popen([sys.executable, str(ARMED), "--dir", str(directory)], stdin=subprocess.DEVNULL)
    try:
        up = lambda: state.processes().get("phase") == "ready" or supervisor.poll() is not None  # noqa: E731
        await eventually(up, timeout_s=UP_S)
        if supervisor.poll() is not None:
            raise RuntimeError(f"the machine ended with {supervisor.returncode}")
        yield machine
    finally:
        supervisor.terminate()
        supervisor.wait(timeout=UP_S)
        for left in directory.glob("*.failpoint"):
            left.unlink()
        machine.cli("down", "--purge")
