"""A launcher with a driver but without the services: the CPU manager's own part of an exec."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from arl_bench.harness.process_usage import tree_cpu_s
from arl_tangram.cli.system.host_resources import HostResourceScanner
from arl_wire.errors import Unavailable

__all__ = ["LauncherDriverClient", "running_launcher_driver"]

STOP_TIMEOUT_S = 60.0


class LauncherDriverClient:
    """A client that sends one request at a time to the driver."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.orphans: list[str] = []
        """Cgroups, processes, mounts and files that remain after the end."""

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu_s(self) -> float:
        """Return the CPU seconds of the driver, its launcher, all environments and all their programs."""
        return tree_cpu_s(self._process.pid)

    def request(self, **order: Any) -> dict[str, Any]:
        """Send a request. Raises `Unavailable` if the driver ended; it has printed the reason on standard error."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # reported by read_response
        return self.read_response()

    def read_response(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Unavailable(f"the driver of the launcher ended with {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found


@contextmanager
def running_launcher_driver() -> Iterator[LauncherDriverClient]:
    """Run a driver with its launcher, stop both at the end, and scan for leftovers."""
    with tempfile.TemporaryDirectory(prefix="tangram-bench-", ignore_cleanup_errors=True) as path:
        directory = Path(path)
        directory.chmod(0o755)  # the uid of an environment must reach its files
        command = [sys.executable, "-P", "-m", "arl_bench.micro.launcher", path]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        found = LauncherDriverClient(process)
        try:
            found.read_response()
            yield found
        finally:
            _stop(process)
            found.orphans = [f"{each.check} {each.subject}" for each in HostResourceScanner(directory).findings()]


def _stop(process: "subprocess.Popen[str]") -> None:
    if process.stdin is not None:
        with suppress(BrokenPipeError):  # the driver ended before it read the request
            process.stdin.close()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
