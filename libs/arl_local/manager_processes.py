"""The processes of a node: the manager of its kind, and the launcher of a CPU node."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from arl_kit.child_process import child_environment
from arl_kit.settings import EXIT_BAD_SETTINGS
from arl_kit.telemetry.otel import service_environment
from arl_local.credentials import NodeIdentity
from arl_local.delegated_cgroup import BUS_VARIABLES
from arl_local.env_routing import forwarded_variables
from arl_local.state_dir import StateDir
from arl_local.supervisor import ProcessSpec

__all__ = [
    "LAUNCHER",
    "LAUNCHER_EXIT_NO_SANDBOX",
    "NODE_COMMANDS",
    "READINESS_MAX_AGE_S",
    "STOP_ORDER",
    "ManagerProcesses",
    "bracketed_host",
    "module_command",
]

LAUNCHER = "cpu-launcher"
LAUNCHER_EXIT_NO_SANDBOX = 3
"""Exit code of a launcher whose driver does not work on this host."""
READINESS_MAX_AGE_S = 60
"""Maximum age in seconds of a database check for a service to count as ready. A lost connection is noticed at once.

A statement for each health check would be most of the database load of an idle system.
"""
STOP_ORDER = {"cpu": 3, "gpu": 3, "api": 3, LAUNCHER: 4}


def module_command(name: str) -> tuple[str, ...]:
    """Return the command that runs a module with this interpreter."""
    return (sys.executable, "-P", "-m", name)


NODE_COMMANDS: Mapping[str, tuple[str, ...]] = {
    LAUNCHER: module_command("arl_cpu.launcher"),
    **{kind: module_command(f"arl_{kind}") for kind in ("cpu", "gpu", "api")},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerProcesses:
    """The specs of node processes, with what they share on one machine."""

    state: StateDir
    environment: Mapping[str, str]
    driver: str
    scheduler_url: str
    cores: str | None = None
    ends_at: float | None = None
    """Time at which the machine ends the node, in seconds since 1970; None if it has no known end."""
    commands: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: NODE_COMMANDS)
    delegation: tuple[str, ...] = ()
    """Words before the launcher's command that run it in a delegated cgroup."""

    def launcher(self, node_name: str) -> ProcessSpec:
        """Return the launcher, which creates the sandboxes of a CPU node."""
        env = {
            **child_environment(self.environment),
            **forwarded_variables(LAUNCHER, self.environment),
            "TANGRAM_LAUNCHER_SOCKET": str(self._launcher_socket),
            "TANGRAM_LAUNCHER_DIR": str(self.state.path / "launcher"),
            "TANGRAM_DRIVER": self.driver,
            "TANGRAM_NODE_NAME": node_name,
            "TANGRAM_TEMPLATES_DIR": self._templates_dir,
        }
        if self.delegation:
            env |= {name: self.environment[name] for name in BUS_VARIABLES if name in self.environment}
        spec = self._spec(LAUNCHER, LAUNCHER, env, ready=_socket_probe(self._launcher_socket))
        return replace(
            spec,
            argv=(*self.delegation, *spec.argv),
            fatal_exit_codes=frozenset({LAUNCHER_EXIT_NO_SANDBOX, EXIT_BAD_SETTINGS}),
        )

    def manager(
        self, name: str, node: NodeIdentity, *, host: str, port: int, database_url: str, secrets: Mapping[str, str]
    ) -> ProcessSpec:
        """Return the manager of a node. `name` is that of the process, `secrets` has its secret settings by name."""
        kind = node.kind
        env = {
            **child_environment(self.environment, devices=kind == "gpu", network=kind in ("api", "cpu")),
            **service_environment(self.environment, kind),
            "TANGRAM_HOST": host,
            "TANGRAM_PORT": str(port),
            "TANGRAM_DATABASE_URL": database_url,
            **{f"TANGRAM_{setting.upper()}": secret for setting, secret in secrets.items()},
            "TANGRAM_NODE_NAME": node.name,
            **forwarded_variables(kind, self.environment),
            "TANGRAM_SCHEDULER_URL": self.scheduler_url,
            **({"TANGRAM_ENDS_AT": str(self.ends_at)} if self.ends_at is not None else {}),
            **self._variables(kind),
        }
        url = f"http://{bracketed_host(host)}:{port}/readyz?max_age_s={READINESS_MAX_AGE_S}"
        return self._spec(name, kind, env, ready=url)

    @property
    def _launcher_socket(self) -> Path:
        return self.state.run_dir / "launcher.sock"

    @property
    def _templates_dir(self) -> str:
        return self.environment.get("TANGRAM_TEMPLATES_DIR") or str(self.state.path / "templates")

    def _variables(self, kind: str) -> dict[str, str]:
        spool = {"TANGRAM_SPOOL_DIR": str(self.state.path / "spool")}
        if kind == "gpu":
            return {**spool, "TANGRAM_ENGINES_DIR": str(self.state.path / "engines")}
        if kind != "cpu":
            return spool
        return {
            **spool,
            "TANGRAM_LAUNCHER_SOCKET": str(self._launcher_socket),
            "TANGRAM_DRIVER": self.driver,
            "TANGRAM_TEMPLATES_DIR": self._templates_dir,
            "TANGRAM_SNAPSHOTS_DIR": str(self.state.path / "snapshots"),
            **({"TANGRAM_CPU_CORES": self.cores} if self.cores else {}),
        }

    def _spec(
        self, name: str, kind: str, env: Mapping[str, str], *, ready: str | Callable[[], Awaitable[bool]]
    ) -> ProcessSpec:
        return ProcessSpec(
            name=name,
            argv=self.commands.get(name) or self.commands[kind],
            env=env,
            ready=ready,
            stop_order=STOP_ORDER[kind],
            fatal_exit_codes=frozenset({EXIT_BAD_SETTINGS}),
        )


def bracketed_host(host: str) -> str:
    """Return a host as it is written in a URL."""
    return f"[{host}]" if ":" in host else host


def _socket_probe(path: Path) -> Callable[[], Awaitable[bool]]:
    async def listens() -> bool:
        try:
            _, writer = await asyncio.open_unix_connection(path)
        except OSError:
            return False
        writer.close()
        return True

    return listens
