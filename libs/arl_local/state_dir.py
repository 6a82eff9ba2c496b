"""The state directory of one machine: its lock, its secrets, its ports."""

import fcntl
import json
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from arl_local.postgres.postgres_paths import create_private_directory, short_enough_directory
from arl_store.files import replace_file

__all__ = ["AlreadyUp", "StateDir", "bind", "choose_ports", "default_directory"]

_LOCK_ATTEMPTS = 10
_RANDOM_PORT_ATTEMPTS = 3
_OWN_ENTRIES = (
    *(
        "api_key",
        *("database_roles", "service_account"),
        "endpoints.json",
        "engines",
        "launcher",
        "logs",
        "passwords",
        "processes.json",
        "run",
        "snapshots",
        "spool",
        "tls",
        *("node.json", "node-report.json", "database-ca.pem", "join-claim", "cluster-ports.json"),
    ),
    *(
        "metrics_token",
        "pools",
        "templates",
        "tokens",
        "up.log",
        "processes.json.unfinished",
        "endpoints.json.unfinished",
        "lock",
    ),
)


class AlreadyUp(Exception):
    """Another supervisor has locked this directory."""


class StateDir:
    """The files of one installation, readable by its owner only."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.run_dir = short_enough_directory(self.path / "run")

    def create(self) -> None:
        """Create the directory and its parents if they are missing."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("logs", "passwords", "tokens"):
            (self.path / name).mkdir(mode=0o700, exist_ok=True)
        create_private_directory(self.run_dir)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the directory and write our pid to the lock file. Raises `AlreadyUp` if another process locked it."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+") as file:
            for attempt in range(_LOCK_ATTEMPTS):
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if attempt == _LOCK_ATTEMPTS - 1:
                        raise AlreadyUp from None
                    time.sleep(0.02)  # a process that only checks the lock releases it at once
            file.truncate()
            file.write(str(os.getpid()))
            file.flush()
            try:
                yield
            finally:
                file.truncate(0)

    def is_locked(self) -> bool:
        """Return True if a process has locked this directory. Nothing is created."""
        try:
            file = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(file)
        return False

    def secret(self, kind: str, name: str) -> str:
        """Return the random secret `kind`/`name`; the first call creates it."""
        path = self.path / kind / name
        if not path.exists():
            replace_file(path, secrets.token_urlsafe(32))
        return path.read_text()

    def api_key(self) -> str:
        """Return the key of the local user; the first call creates it."""
        path = self.path / "api_key"
        if not path.exists():
            replace_file(path, f"tk_{secrets.token_urlsafe(32)}")
        return path.read_text()

    def cell(self, chosen: int | None) -> int:
        """Return the number of this cell, and store a chosen one. The default is the stored one, else 0.

        Raises ValueError for another number than the stored one, because existing ids contain that.
        """
        path = self.path / "cell"
        stored = int(path.read_text()) if path.exists() else None
        if chosen is None or chosen == stored:
            return stored or 0
        if stored is not None:
            raise ValueError(f"this system is cell {stored}, as its ids say; it cannot become cell {chosen}")
        if chosen:
            replace_file(path, f"{chosen}\n")
        return chosen

    def metrics_token(self) -> str:
        """Return the token for `/metrics` of the internal services; the first call creates it."""
        path = self.path / "metrics_token"
        if not path.exists():
            replace_file(path, secrets.token_urlsafe(32))
        return path.read_text()

    def endpoints(self) -> dict[str, str]:
        """Return the addresses of the last start; empty before the first."""
        try:
            return dict(json.loads((self.path / "endpoints.json").read_text()))
        except (OSError, ValueError):
            return {}

    def publish_endpoints(self, endpoints: Mapping[str, str]) -> None:
        """Publish the addresses of the services to clients."""
        replace_file(self.path / "endpoints.json", json.dumps(dict(endpoints), indent=1) + "\n")

    def cluster_ports(self) -> dict[str, int]:
        """Return the ports that joined nodes know; empty before the first start for other machines."""
        try:
            return dict(json.loads((self.path / "cluster-ports.json").read_text()))
        except (OSError, ValueError):
            return {}

    def store_cluster_ports(self, ports: Mapping[str, int]) -> None:
        """Store the ports that nodes get with their credentials."""
        replace_file(self.path / "cluster-ports.json", json.dumps(dict(ports)) + "\n")

    def check_purgeable(self) -> None:
        """Raise OSError if nodes of pools run below this directory or file systems are mounted there."""
        if running := [node for node in self._pool_nodes() if node.is_locked()]:
            raise OSError(
                f"nodes of pools still run here: {', '.join(node.path.parent.name for node in running)}. Stop the"
                f" controller, and then each node: tangram node down --dir {running[0].path}"
            )
        if on_ray := self._nodes_of_engine("ray"):
            raise OSError(
                f"nodes of pools still run on a Ray cluster: {', '.join(on_ray)}. Stop them first: tangram engine ray"
                " --stop-nodes with their pools, then Ctrl-C"
            )
        if in_jobs := self._nodes_of_engine("slurm"):
            raise OSError(
                f"nodes of pools still have Slurm jobs: {', '.join(in_jobs)}. Stop them first: tangram engine slurm"
                " --stop-nodes with their pools, then Ctrl-C"
            )
        mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        if below := [mount for mount in mounts if Path(mount).is_relative_to(self.path.resolve())]:
            raise OSError(f"still mounted: {', '.join(below)}; unmount first")

    def purge(self) -> None:
        """Remove the files of the installation, and the directory if it is then empty. Raises OSError."""
        self.check_purgeable()
        for place in (self.run_dir, *(self.path / name for name in _OWN_ENTRIES)):
            if place.is_dir() and not place.is_symlink():
                shutil.rmtree(place)
            else:
                place.unlink(missing_ok=True)
        if not any(self.path.iterdir()):
            self.path.rmdir()

    def _pool_nodes(self) -> list["StateDir"]:
        """Return the state directories of nodes that the local engine runs here."""
        return [StateDir(path) for path in sorted(self.path.glob("pools/*/state"))]

    def _nodes_of_engine(self, engine: str) -> list[str]:
        """Return the nodes in the table of an engine."""
        try:
            content = json.loads((self.path / "pools" / engine / "nodes.json").read_text())
            return [str(node["name"]) for node in content["nodes"]]
        except (OSError, ValueError):
            return []


def default_directory(environment: Mapping[str, str]) -> Path:
    """Return the default path of the state directory."""
    if chosen := environment.get("TANGRAM_DIR"):
        return Path(chosen)
    home = environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "tangram"


def choose_ports(preferences_by_name: Mapping[str, tuple[str, tuple[int, ...]]], reserved: ExitStack) -> dict[str, int]:
    """Choose a different free port for each name, given its host and its preferred ports.

    Until `reserved` is closed, no other installation chooses them, although nothing listens on them yet.
    """
    chosen: dict[str, int] = {}
    with ExitStack() as held:
        for name, (host, preferences) in preferences_by_name.items():
            for port in (*preferences, *[0] * _RANDOM_PORT_ATTEMPTS):
                try:
                    listener = held.enter_context(bind(host, port))
                    chosen[name] = listener.getsockname()[1]
                    reserved.enter_context(_reserve_port(chosen[name]))
                except OSError:
                    continue
                break
            else:
                raise OSError(f"No port is free on address {host}. Check that the address belongs to this machine")
    return chosen


def _reserve_port(port: int) -> socket.socket:
    """Reserve a port by an abstract socket name. It has the scope of ports and ends with its owner."""
    reservation = socket.socket(socket.AF_UNIX)
    try:
        reservation.bind(f"\0tangram-port-{port}")
    except OSError:
        reservation.close()
        raise
    return reservation


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to the address. Raises OSError."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound
