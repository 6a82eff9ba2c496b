"""A Ray cluster on this machine: a head without work, and Ray nodes that can be killed one by one."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from support.conditions import is_running

__all__ = ["RAY_PYTHON", "RESOURCE", "RayCluster", "a_ray_cluster"]

RAY_PYTHON = Path(__file__).parents[2] / ".ray" / "bin" / "python"
"""Interpreter of the environment that `make test-engines` installs."""
RESOURCE = "tangram_cpu"
START_S = 60.0
_MARK = "TEST_RAY_CLUSTER"
_OBJECT_STORE_BYTES = 80_000_000


@dataclass
class RayCluster:
    """The cluster. All its processes have a mark in their environment, by which they are found and killed."""

    directory: Path
    """Ray's temporary directory. Its path must be short, because Ray keeps sockets in it."""
    port: int
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    ray_nodes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """The head and the Ray nodes: `ray start --block`."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def token(self) -> Path:
        return self.directory / "token"

    def environment(self) -> dict[str, str]:
        """Return the environment of all Ray processes. A dead Ray node is seen after about 3 s."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "TANGRAM_"))}
        return kept | {
            _MARK: self.mark,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.token),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": str(int(START_S)),
            "RAY_health_check_initial_delay_ms": "1000",
            "RAY_health_check_period_ms": "1000",
            "RAY_health_check_timeout_ms": "2000",
            "RAY_health_check_failure_threshold": "3",
        }

    def start_head(self) -> None:
        self._start(
            "--head",
            f"--port={self.port}",
            "--include-dashboard=false",
            f"--ray-client-server-port={_free_port()}",
            f"--dashboard-port={_free_port()}",
            f"--temp-dir={self.directory / 'ray'}",
        )

    def start_ray_node(self) -> None:
        """Start a Ray node and wait for it. Several that start at the same time disturb each other."""
        self._start(f"--address={self.address}", "--resources", f'{{"{RESOURCE}": 1}}')

    def kill_ray_node(self, node_id: str) -> None:
        """Kill a Ray node as a failing machine would: everything at once, without notice."""
        (raylet,) = [pid for pid in self._processes() if f"--node_id={node_id}" in _arguments(pid)]
        group = os.getpgid(raylet)
        for pid in self._processes():
            with suppress(ProcessLookupError):
                if os.getpgid(pid) == group or _has_ancestor(pid, raylet):
                    os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """Kill all processes of this cluster, and no others."""
        deadline = time.monotonic() + 20
        while (left := self._processes()) and time.monotonic() < deadline:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for process in self.ray_nodes:
            process.wait()
        assert not left

    def _start(self, *options: str) -> None:
        output = self.directory / f"start-{len(self.ray_nodes)}.log"
        ray = RAY_PYTHON.with_name("ray")
        usual = ("--num-cpus=0", "--node-ip-address=127.0.0.1", f"--object-store-memory={_OBJECT_STORE_BYTES}")
        ports = ("--min-worker-port=0", "--max-worker-port=0", f"--dashboard-agent-listen-port={_free_port()}")
        with output.open("wb") as log:
            process = subprocess.Popen(
                [str(ray), "start", "--block", "--disable-usage-stats", *usual, *ports, *options],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.ray_nodes.append(process)
        deadline = time.monotonic() + START_S
        while "Ray runtime started" not in output.read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"ray start did not start Ray: {output.read_text()}")
            time.sleep(0.05)

    def _processes(self) -> list[int]:
        """Return the processes with the mark, those of nodes on the cluster included."""
        found, wanted = [], f"{_MARK}={self.mark}".encode()
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdecimal() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return [pid for pid in found if is_running(pid)]


@contextmanager
def a_ray_cluster(ray_nodes: int) -> Iterator[RayCluster]:
    """Start a cluster, and stop it at the end."""
    directory = Path(tempfile.mkdtemp(prefix="tray-", dir="/tmp"))
    cluster = RayCluster(directory, _free_port())
    cluster.token.write_text(secrets.token_hex(32))
    cluster.token.chmod(0o600)
    try:
        cluster.start_head()
        for _ in range(ray_nodes):
            cluster.start_ray_node()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(directory)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _arguments(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _has_ancestor(pid: int, ancestor: int) -> bool:
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False
