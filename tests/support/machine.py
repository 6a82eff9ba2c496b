"""`tangram up` as a user runs it: the real command line, supervisor, Postgres, launcher and services."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arl_tangram import AsyncTangram, Tangram
from arl_tangram.connection import resolve

__all__ = ["Machine", "a_machine"]

UP_S = 90.0


@dataclass(frozen=True)
class Machine:
    directory: Path

    def cli(self, *arguments: str, check: bool = True, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """A command line of this system. Without `check` the caller looks at the exit code."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TANGRAM_")}
        done = subprocess.run(
            [sys.executable, "-m", "arl_tangram.cli", *arguments],
            env=environment | {"TANGRAM_DIR": str(self.directory)},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=UP_S,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"tangram {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr}")
        return done

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.cli("status", "-o", "json", check=False).stdout)
        return found

    def pid_of(self, process: str) -> int:
        return int(self.status()["processes"][process]["pid"])

    def pids(self) -> set[int]:
        status = self.status()
        return {int(entry["pid"]) for entry in status["processes"].values()} | {int(status["supervisor"]["pid"])}

    def kill(self, process: str) -> None:
        os.kill(self.pid_of(process), signal.SIGKILL)

    def client(self) -> Tangram:
        connection = resolve(directory=self.directory)
        return Tangram(connection.url, connection.api_key)

    def async_client(self) -> AsyncTangram:
        connection = resolve(directory=self.directory)
        return AsyncTangram(connection.url, connection.api_key)


@contextmanager
def a_machine(directory: Path, *flags: str) -> Iterator[Machine]:
    """Up and ready; taken down and purged at the end."""
    machine = Machine(directory)
    machine.cli("up", "--detach", *flags)
    try:
        yield machine
    finally:
        machine.cli("down", "--purge")
