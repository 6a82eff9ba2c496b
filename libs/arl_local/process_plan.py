"""The processes of one machine and the variables of each: only those that it uses."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from arl_kit.child_process import child_environment
from arl_kit.settings import EXIT_BAD_SETTINGS
from arl_kit.telemetry.otel import service_environment
from arl_local.credentials import NODE_KINDS, NodeIdentity, service_secrets
from arl_local.env_routing import forwarded_variables
from arl_local.manager_processes import (
    NODE_COMMANDS,
    READINESS_MAX_AGE_S,
    STOP_ORDER,
    ManagerProcesses,
    bracketed_host,
    module_command,
)
from arl_local.state_dir import StateDir
from arl_local.supervisor import ProcessSpec

__all__ = [
    "DATABASE_RELAY",
    "DEFAULT_COMMANDS",
    "SERVICES",
    "LocalOptions",
    "ProcessPlan",
    "node_of",
    "process_names",
]

SERVICES = ("admission", "scheduler", "cpu", "gpu", "api", "gateway")
"""Services in start order. `api` starts only if endpoints are configured."""

DATABASE_RELAY = "database-relay"
"""Process that serves the embedded Postgres to other machines."""
_STOP_ORDER = {**STOP_ORDER, "gateway": 0, "admission": 1, "scheduler": 2, DATABASE_RELAY: 5}
_LOOPBACK = "127.0.0.1"
DEFAULT_COMMANDS: Mapping[str, tuple[str, ...]] = {
    **NODE_COMMANDS,
    **{service: module_command(f"arl_{service}") for service in SERVICES if service not in NODE_KINDS},
    DATABASE_RELAY: module_command("arl_local.postgres.tls_relay"),
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
            name: f"http://{bracketed_host(_reachable_host(self._host_of(name)))}:{self.ports[name]}"
            for name in self.names
        }
        if self.relay is not None and self.options.listen is not None:
            urls[DATABASE_RELAY] = f"postgresql://{bracketed_host(self.options.listen)}:{self.ports[DATABASE_RELAY]}"
        return urls

    def specs(self) -> list[ProcessSpec]:
        """Return the process specs in start order. Simulated nodes need no launcher."""
        launcher = [] if self.options.driver == "simulated" else [self._managers.launcher(socket.gethostname())]
        relay = [self._relay_spec(self.relay)] if self.relay is not None else []
        return [*launcher, *(self._service_spec(name) for name in self.names), *relay]

    def configured_specs(self) -> list[ProcessSpec]:
        """Return the specs of the processes for which the user gave a setting. The settings of others are ours."""
        return [spec for spec in self.specs() if self._has_user_settings(spec.name)]

    def _has_user_settings(self, name: str) -> bool:
        service = _service_of(name)
        return bool(forwarded_variables(service, self.environment)) or (service == "cpu" and bool(self.options.cores))

    @property
    def _managers(self) -> ManagerProcesses:
        return ManagerProcesses(
            state=self.state,
            environment=self.environment,
            driver=self.options.driver,
            scheduler_url=self.endpoints["scheduler"],
            cores=self.options.cores,
            commands=self.commands,
            delegation=self.delegation,
        )

    def _relay_spec(self, relay: Mapping[str, str]) -> ProcessSpec:
        host, port = str(self.options.listen), self.ports[DATABASE_RELAY]
        env = {**child_environment(self.environment), **relay, "TANGRAM_HOST": host, "TANGRAM_PORT": str(port)}
        return self._process_spec(DATABASE_RELAY, env, ready=_tcp_probe(host, port))

    def _service_spec(self, name: str) -> ProcessSpec:
        host, port, url = self._host_of(name), self.ports[name], self.database_urls[name]
        if (node := node_of(name)) is not None:
            secrets = service_secrets(self.state, node.kind, node_name=node.name)
            return self._managers.manager(name, node, host=host, port=port, database_url=url, secrets=secrets)
        env = {
            **child_environment(self.environment),
            **service_environment(self.environment, name),
            "TANGRAM_HOST": host,
            "TANGRAM_PORT": str(port),
            "TANGRAM_DATABASE_URL": url,
            **{f"TANGRAM_{setting.upper()}": secret for setting, secret in service_secrets(self.state, name).items()},
            **forwarded_variables(name, self.environment),
            **self._peer_urls(name),
        }
        return self._process_spec(name, env, ready=f"{self.endpoints[name]}/readyz?max_age_s={READINESS_MAX_AGE_S}")

    def _peer_urls(self, name: str) -> dict[str, str]:
        known = {"gateway": ("admission", "scheduler"), "admission": ("scheduler",)}
        return {f"TANGRAM_{peer.upper()}_URL": self.endpoints[peer] for peer in known.get(name, ())}

    def _process_spec(
        self, name: str, env: Mapping[str, str], *, ready: str | Callable[[], Awaitable[bool]]
    ) -> ProcessSpec:
        return ProcessSpec(
            name=name,
            argv=self.commands[name],
            env=env,
            ready=ready,
            stop_order=_STOP_ORDER[name],
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
