"""A launcher with a driver on it, without the services around them: the CPU manager's own part of an exec."""

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
    """Orders and answers, one at a time."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.orphans: list[str] = []
        """Cgroups, processes, mounts and files that are still there after the end."""

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu_s(self) -> float:
        """Of the driver, its launcher, every environment, and all that ran in them or beside them."""
        return tree_cpu_s(self._process.pid)

    def request(self, **order: Any) -> dict[str, Any]:
        """Raises `Unavailable` where the driver ended instead of answering; it has said why on standard error."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # told below
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
    """Ready for orders; ended, with its launcher, at the end, and looked after."""
    with tempfile.TemporaryDirectory(prefix="tangram-bench-", ignore_cleanup_errors=True) as path:
        directory = Path(path)
        directory.chmod(0o755)  # an environment's own uid finds its files below
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
        with suppress(BrokenPipeError):  # an order that it did not live to read
            process.stdin.close()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
