"""The processes of one machine and the variables of each: only those that it uses."""

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from arl_kit.child_process import child_environment
from arl_kit.settings import EXIT_BAD_SETTINGS
from arl_kit.telemetry.otel import service_environment
from arl_local.credentials import NODE_KINDS, NodeIdentity, service_secrets
from arl_local.delegated_cgroup import BUS_VARIABLES
from arl_local.env_routing import forwarded_variables
from arl_local.state_dir import StateDir
from arl_local.supervisor import ProcessSpec

__all__ = [
    "DATABASE_RELAY",
    "DEFAULT_COMMANDS",
    "LAUNCHER_EXIT_NO_SANDBOX",
    "SERVICES",
    "LocalOptions",
    "ProcessPlan",
    "node_of",
    "process_names",
]

SERVICES = ("admission", "scheduler", "cpu", "gpu", "api", "gateway")
"""Services in start order. `api` starts only if endpoints are configured."""

LAUNCHER_EXIT_NO_SANDBOX = 3
"""Exit code of a launcher whose driver does not work on this host."""

DATABASE_RELAY = "database-relay"
"""Process that serves the embedded Postgres to other machines."""
_STOP_ORDER = {
    "gateway": 0,
    "admission": 1,
    "scheduler": 2,
    "cpu": 3,
    "gpu": 3,
    "api": 3,
    "cpu-launcher": 4,
    DATABASE_RELAY: 5,
}
_LOOPBACK = "127.0.0.1"
_READINESS_MAX_AGE_S = 60
"""Maximum age in seconds of a database check for a service to count as ready. A lost connection is noticed at once.

A statement for each health check would be most of the database load of an idle system.
"""


def _module_command(name: str) -> tuple[str, ...]:
    return (sys.executable, "-P", "-m", name)


DEFAULT_COMMANDS: Mapping[str, tuple[str, ...]] = {
    "cpu-launcher": _module_command("arl_cpu.launcher"),
    **{service: _module_command(f"arl_{service}") for service in SERVICES},
    DATABASE_RELAY: _module_command("arl_local.postgres.tls_relay"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    """The options of the user."""

    directory: Path
    host: str = _LOOPBACK
    port: int | None = None
    listen: str | None = None
    """Address on which gateway, scheduler and embedded Postgres serve other machines. None: only this machine."""
    networks: tuple[str, ...] = ()
    """Networks from which nodes may connect to the embedded Postgres."""
    cores: str | None = None
    nodes: int = 1
    """Number of nodes, each with the same cores. Only simulated nodes can share a machine."""
    driver: str = "auto"
    database_url: str | None = None
    """The owner's URL of an existing Postgres; None is the embedded one."""
    take_over: bool = False
    """True if the database may belong to another state directory. The services of that one are then locked out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlan:
    """The processes of one start, with all decisions made."""

    options: LocalOptions
    state: StateDir
    ports: Mapping[str, int]
    database_urls: Mapping[str, str]
    environment: Mapping[str, str]
    commands: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: DEFAULT_COMMANDS)
    relay: Mapping[str, str] | None = None
    """Variables of the relay in front of the embedded Postgres; None without one."""
    delegation: tuple[str, ...] = ()
    """Words before the launcher's command that run it in a delegated cgroup."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all services; `cpu-2` and so on are further nodes."""
        return process_names(self.options.nodes, self.environment)

    @property
    def endpoints(self) -> dict[str, str]:
        """Return the URL of each service, as seen from this machine."""
        urls = {
            name: f"http://{_bracketed_host(_reachable_host(self._host_of(name)))}:{self.ports[name]}"
            for name in self.names
        }
        if self.relay is not None and self.options.listen is not None:
            urls[DATABASE_RELAY] = f"postgresql://{_bracketed_host(self.options.listen)}:{self.ports[DATABASE_RELAY]}"
        return urls

    def specs(self) -> list[ProcessSpec]:
        """Return the process specs in start order. Simulated nodes need no launcher."""
        launcher = [] if self.options.driver == "simulated" else [self._launcher_spec()]
        relay = [self._relay_spec(self.relay)] if self.relay is not None else []
        return [*launcher, *(self._service_spec(name) for name in self.names), *relay]

    def configured_specs(self) -> list[ProcessSpec]:
        """Return the specs of the processes for which the user gave a setting. The settings of others are ours."""
        return [spec for spec in self.specs() if self._has_user_settings(spec.name)]

    def _has_user_settings(self, name: str) -> bool:
        service = _service_of(name)
        return bool(forwarded_variables(service, self.environment)) or (service == "cpu" and bool(self.options.cores))

    @property
    def _launcher_socket(self) -> Path:
        return self.state.run_dir / "launcher.sock"

    @property
    def _templates_dir(self) -> str:
        return self.environment.get("TANGRAM_TEMPLATES_DIR") or str(self.state.path / "templates")

    def _relay_spec(self, relay: Mapping[str, str]) -> ProcessSpec:
        host, port = str(self.options.listen), self.ports[DATABASE_RELAY]
        env = {**child_environment(self.environment), **relay, "TANGRAM_HOST": host, "TANGRAM_PORT": str(port)}
        return self._process_spec(DATABASE_RELAY, env, ready=_tcp_probe(host, port))

    def _launcher_spec(self) -> ProcessSpec:
        env = {
            **child_environment(self.environment),
            **forwarded_variables("cpu-launcher", self.environment),
            "TANGRAM_LAUNCHER_SOCKET": str(self._launcher_socket),
            "TANGRAM_LAUNCHER_DIR": str(self.state.path / "launcher"),
            "TANGRAM_DRIVER": self.options.driver,
            "TANGRAM_NODE_NAME": socket.gethostname(),
            "TANGRAM_TEMPLATES_DIR": self._templates_dir,
        }
        if self.delegation:
            env |= {name: self.environment[name] for name in BUS_VARIABLES if name in self.environment}
        spec = self._process_spec("cpu-launcher", env, ready=_socket_probe(self._launcher_socket))
        return replace(
            spec,
            argv=(*self.delegation, *spec.argv),
            fatal_exit_codes=frozenset({LAUNCHER_EXIT_NO_SANDBOX, EXIT_BAD_SETTINGS}),
        )

    def _service_spec(self, name: str) -> ProcessSpec:
        service = _service_of(name)
        node = node_of(name)
        secrets = service_secrets(self.state, service, node_name=node.name if node else None)
        env = {
            **child_environment(self.environment, devices=service == "gpu", network=service == "api"),
            **service_environment(self.environment, service),
            "TANGRAM_HOST": self._host_of(name),
            "TANGRAM_PORT": str(self.ports[name]),
            "TANGRAM_DATABASE_URL": self.database_urls[name],
            **{f"TANGRAM_{setting.upper()}": secret for setting, secret in secrets.items()},
            **({"TANGRAM_NODE_NAME": node.name} if node else {}),
            **forwarded_variables(service, self.environment),
            **self._service_variables(name),
        }
        return self._process_spec(name, env, ready=f"{self.endpoints[name]}/readyz?max_age_s={_READINESS_MAX_AGE_S}")

    def _service_variables(self, name: str) -> dict[str, str]:
        if name == "gateway":
            return {
                "TANGRAM_ADMISSION_URL": self.endpoints["admission"],
                "TANGRAM_SCHEDULER_URL": self.endpoints["scheduler"],
            }
        if name == "admission":
            return {"TANGRAM_SCHEDULER_URL": self.endpoints["scheduler"]}
        if name in ("gpu", "api"):
            engines = {"TANGRAM_ENGINES_DIR": str(self.state.path / "engines")} if name == "gpu" else {}
            return {
                "TANGRAM_SCHEDULER_URL": self.endpoints["scheduler"],
                **engines,
            }
        if _service_of(name) != "cpu":
            return {}
        return {
            "TANGRAM_SCHEDULER_URL": self.endpoints["scheduler"],
            "TANGRAM_LAUNCHER_SOCKET": str(self._launcher_socket),
            "TANGRAM_DRIVER": self.options.driver,
            "TANGRAM_TEMPLATES_DIR": self._templates_dir,
            "TANGRAM_SNAPSHOTS_DIR": str(self.state.path / "snapshots"),
            **({"TANGRAM_CPU_CORES": self.options.cores} if self.options.cores else {}),
        }

    def _process_spec(
        self, name: str, env: Mapping[str, str], *, ready: str | Callable[[], Awaitable[bool]]
    ) -> ProcessSpec:
        which = name if name in self.commands else _service_of(name)
        return ProcessSpec(
            name=name,
            argv=self.commands[which],
            env=env,
            ready=ready,
            stop_order=_STOP_ORDER[which],
            fatal_exit_codes=frozenset({EXIT_BAD_SETTINGS}),
        )

    def _host_of(self, name: str) -> str:
        if self.options.listen is not None and name in ("gateway", "scheduler"):
            return self.options.listen
        return self.options.host if name == "gateway" else _LOOPBACK


def process_names(nodes: int, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the services and of further nodes. `api` is omitted if no endpoints are configured."""
    there = (name for name in SERVICES if name != "api" or environment.get("TANGRAM_ENDPOINTS"))
    return (*there, *(f"cpu-{number}" for number in range(2, nodes + 1)))


def node_of(process: str) -> NodeIdentity | None:
    """Return the node of a manager's process on this machine, or None for other services."""
    kind = _service_of(process)
    if kind not in NODE_KINDS:
        return None
    suffix = process.removeprefix("cpu") if kind == "cpu" else f"-{process}"
    return NodeIdentity(kind, socket.gethostname() + suffix)


def _service_of(name: str) -> str:
    return "cpu" if name.startswith("cpu-") and name != "cpu-launcher" else name


def _socket_probe(path: Path) -> Callable[[], Awaitable[bool]]:
    async def listens() -> bool:
        try:
            _, writer = await asyncio.open_unix_connection(path)
        except OSError:
            return False
        writer.close()
        return True

    return listens


def _tcp_probe(host: str, port: int) -> Callable[[], Awaitable[bool]]:
    async def listens() -> bool:
        try:
            _, writer = await asyncio.open_connection(host, port)
        except OSError:
            return False
        writer.close()
        return True

    return listens


def _reachable_host(host: str) -> str:
    """Return an address of this machine for a host that may mean all addresses."""
    return {"": _LOOPBACK, "0.0.0.0": _LOOPBACK, "::": "::1", "localhost": _LOOPBACK}.get(host, host)  # noqa: S104


def _bracketed_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
