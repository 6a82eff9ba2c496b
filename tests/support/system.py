"""The whole system as real processes on a new database, as the flow and chaos tests use it."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import httpx

from arl_kit.service_tokens import TokenIssuer, node_audience, pairwise_key
from arl_local.credentials import ALLOWED_CALLERS
from arl_store.logins import role_url
from arl_store.migrate import ensure_api_key
from support.nursery import Forked
from support.postgres import PASSWORDS

__all__ = ["API_KEY", "METRICS_TOKEN", "System", "free_ports", "running_system"]

API_KEY = "tk_0123456789abcdef0123456789abcdef"
SERVICES = ("admission", "scheduler", "cpu", "gateway")
METRICS_TOKEN = "metrics-token-0123456789abcdef"
READY_S = 30.0


@dataclass
class System:
    """A system of processes by name; each can be killed and restarted with the same settings."""

    directory: Path
    owner_url: str
    driver: str
    cores: int | None
    overrides: dict[str, dict[str, str]]
    ports: dict[str, int] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes] | Forked] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.url_of("gateway")

    def url_of(self, service: str) -> str:
        return f"http://127.0.0.1:{self.ports[service]}"

    def client(self, timeout_s: float = 60.0) -> httpx.AsyncClient:
        """Return a client without a connection limit, so that no request waits in the client."""
        headers = {"authorization": f"Bearer {API_KEY}"}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=timeout_s, limits=limits, verify=False)

    def log(self, service: str) -> str:
        return (self.directory / f"{service}.log").read_text()

    async def start(self, *names: str) -> None:
        """Start these processes concurrently. A name like `scheduler-2` is another instance of a service."""
        for name in names:
            self._spawn(name)
        await asyncio.gather(*(self.wait_ready(name) for name in names))

    def _spawn(self, name: str) -> None:
        module = "arl_cpu.launcher" if name == "launcher" else f"arl_{_service(name)}"
        if name != "launcher" and name not in self.ports:
            [self.ports[name]] = free_ports(1)
        env, log = self._environment(name), self.directory / f"{name}.log"
        if name == "launcher":
            self.processes[name] = _program(module, env=env, log=log)
        else:
            self.processes[name] = Forked(module, env=env, log=log)

    async def wait_ready(self, name: str) -> None:
        """Wait until the process answers; raise an error with its log if it exited."""
        async with asyncio.timeout(READY_S), httpx.AsyncClient(verify=False) as client:
            while not await self._is_ready(name, client):
                if self.processes[name].poll() is not None:
                    raise RuntimeError(
                        f"{name} ended with {self.processes[name].returncode}:\n{self.log(name)[-4000:]}"
                    )
                await asyncio.sleep(0.02)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        process = self.processes[name]
        process.send_signal(number)
        process.wait(timeout=15)

    async def start_again_without_failpoint(self, name: str, *, timeout_s: float = 60.0) -> None:
        """Wait until the process dies at its failpoint and start it again without one."""
        process = self.processes[name]
        async with asyncio.timeout(timeout_s):
            while process.poll() is None:
                await asyncio.sleep(0.02)
        if process.returncode != -signal.SIGKILL:
            raise RuntimeError(f"{name} ended with {process.returncode}:\n{self.log(name)[-4000:]}")
        del self.overrides[name]["TANGRAM_FAILPOINTS"]
        await self.start(name)

    def stop(self) -> None:
        for name in reversed(self.processes):
            process = self.processes[name]
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.send_signal(signal.SIGCONT)
        for process in self.processes.values():
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()

    def secret(self, service: str) -> str:
        return f"{service}-token-0123456789abcdef"

    def token(self, caller: str, receiver: str) -> str:
        """Return a token of a service for another one."""
        return TokenIssuer(caller, self.secret(caller)).token_for(self.audience(receiver))

    def audience(self, name: str) -> str:
        node = self.node_name(name)
        return node_audience(node) if node is not None else _service(name)

    def node_name(self, name: str) -> str | None:
        """Return the node of a manager, or None for another service."""
        node = {"cpu": self.directory.name, "gpu": f"{self.directory.name}-gpu", "api": f"{self.directory.name}-api"}
        service = _service(name)
        named = self.overrides.get(name, {}).get("TANGRAM_NODE_NAME")
        return named or (f"node-{node[service]}" if service in node else None)

    async def metrics(self, service: str) -> str:
        """Return what Prometheus reads from an internal service."""
        headers = {"authorization": f"Bearer {METRICS_TOKEN}"}
        async with httpx.AsyncClient(verify=False, headers=headers) as client:
            return (await client.get(f"{self.url_of(service)}/metrics")).raise_for_status().text

    async def _is_ready(self, name: str, client: httpx.AsyncClient) -> bool:
        if name == "launcher":
            return (self.directory / "l.sock").exists()
        try:
            return (await client.get(f"{self.url_of(name)}/readyz")).status_code == 200
        except httpx.TransportError:
            return False

    def _environment(self, name: str) -> dict[str, str]:
        service_name = _service(name)
        basic = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
        sandbox = {
            "TANGRAM_LAUNCHER_SOCKET": str(self.directory / "l.sock"),
            "TANGRAM_LAUNCHER_DIR": str(self.directory / "launcher"),
            "TANGRAM_DRIVER": self.driver,
            "TANGRAM_NODE_NAME": f"node-{self.directory.name}",
        }
        if name == "launcher":
            return basic | sandbox | self.overrides.get(name, {})
        audience = self.audience(name)
        keys = {caller: pairwise_key(self.secret(caller), audience) for caller in ALLOWED_CALLERS[service_name]}
        service = {
            "TANGRAM_PORT": str(self.ports[name]),
            "TANGRAM_DATABASE_URL": role_url(self.owner_url, service_name, PASSWORDS[service_name]),
            "TANGRAM_SERVICE_TOKEN": self.secret(service_name),
            "TANGRAM_CALLER_KEYS": json.dumps(keys),
            "TANGRAM_METRICS_TOKEN_HASH": sha256(METRICS_TOKEN.encode()).hexdigest(),
            "TANGRAM_ADMISSION_URL": self.url_of("admission"),
            "TANGRAM_SCHEDULER_URL": self.url_of("scheduler"),
        }
        if service_name in ("cpu", "gpu", "api"):
            service |= {"TANGRAM_SPOOL_DIR": str(self.directory / "spool")}
        if service_name in ("gpu", "api"):
            service |= {"TANGRAM_NODE_NAME": f"{sandbox['TANGRAM_NODE_NAME']}-{service_name}"}
        if service_name == "cpu":
            service |= sandbox | {"TANGRAM_SNAPSHOTS_DIR": str(self.directory / "snapshots")}
            service |= {"TANGRAM_CPU_CORES": str(self.cores)} if self.cores else {}
        return basic | service | self.overrides.get(name, {})


@asynccontextmanager
async def running_system(
    owner_url: str,
    *,
    driver: str = "simulated",
    cores: int | None = None,
    overrides: dict[str, dict[str, str]] | None = None,
    scores: bool = False,
) -> AsyncIterator[System]:
    """Run a system; with `scores` it includes a GPU node, which few tests need."""
    directory = Path(tempfile.mkdtemp(prefix="tangram-"))
    system = System(directory, owner_url, driver, cores, overrides or {})
    system.ports = dict(zip(SERVICES, free_ports(len(SERVICES)), strict=True))
    await ensure_api_key(owner_url, "default", API_KEY)
    try:
        if driver != "simulated":
            await system.start("launcher")
        await system.start(*SERVICES, *(["gpu"] if scores else []))
        yield system
    finally:
        system.stop()
        shutil.rmtree(directory)


def _program(module: str, *, env: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as words:
        command = [sys.executable, "-m", module]
        return subprocess.Popen(command, env=env, stdout=words, stderr=words, start_new_session=True)


def _service(name: str) -> str:
    return name.partition("-")[0]


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
