"""Start a joined node, keep it running until it is stopped, then stop its processes."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

from arl_local.delegated_cgroup import delegation_command
from arl_local.join.credentials import JoinedNode
from arl_local.join.drain import reopen_node
from arl_local.join.exchange import check_database
from arl_local.join.networks import local_address_towards
from arl_local.join.node_repository import connected_node
from arl_local.manager_processes import ManagerProcesses, bracketed_host
from arl_local.settings_check import check_settings
from arl_local.state_dir import StateDir, choose_ports
from arl_local.supervisor import ProcessSpec, Supervisor
from arl_local.up import set_up_logging, stop_event
from arl_store.files import replace_file

__all__ = ["NODE_REPORT", "NodeOptions", "run_node"]

NODE_REPORT = "node-report.json"
"""File with the name, capacity and enforced limits of the node, for `tangram node up`."""
_MANAGER_PORT = 8703
_START_TIMEOUT_S = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """The options of the user."""

    address: str | None = None
    """Address at which scheduler and gateway reach the manager. None: the one from which it reaches the gateway."""
    port: int | None = None
    driver: str = "auto"
    cores: str | None = None
    ends_at: float | None = None
    """Time at which this machine ends the node, in seconds since 1970; None if it has no known end."""


async def run_node(
    state: StateDir,
    joined: JoinedNode,
    options: NodeOptions,
    environment: Mapping[str, str],
    *,
    until_eof: bool = False,
) -> None:
    """Run until a stop signal, or the end of standard input with `until_eof`. Return when all has stopped.

    The caller has locked the state directory. Raises `JoinFailed` if the credentials are refused.
    """
    set_up_logging(state)
    stop = stop_event(until_eof=until_eof)
    with ExitStack() as reserved:
        host = options.address or _own_address(joined)
        last = urlsplit(state.endpoints().get(joined.kind, "")).port
        preferences = (options.port,) if options.port else (*((last,) if last else ()), _MANAGER_PORT)
        port = choose_ports({joined.kind: (host, preferences)}, reserved)[joined.kind]
        if options.port and port != options.port:
            raise OSError(f"port {port} on {host} is taken; choose another with --port")
        async with Supervisor(state.path) as supervisor:
            starting = asyncio.create_task(_start(supervisor, state, joined, options, environment, (host, port)))
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()
                await asyncio.wait((starting,))
                return
            starting.result()
            await stopping


async def _start(
    supervisor: Supervisor,
    state: StateDir,
    joined: JoinedNode,
    options: NodeOptions,
    environment: Mapping[str, str],
    address: tuple[str, int],
) -> None:
    supervisor.report("starting", "connecting to the system")
    await check_database(joined, state.path)
    await reopen_node(joined, state.path)
    specs = await _specs(state, joined, options, environment, address)
    supervisor.report("starting", "checking the settings")
    await check_settings(specs)
    supervisor.report("starting", "starting the node")
    for spec in specs:
        supervisor.start(spec)
    await supervisor.wait_ready(*(spec.name for spec in specs), timeout_s=_START_TIMEOUT_S)
    state.publish_endpoints({joined.kind: f"http://{bracketed_host(address[0])}:{address[1]}"})
    replace_file(state.path / NODE_REPORT, json.dumps(await _report(joined, state.path), indent=1) + "\n")
    supervisor.report("ready")


async def _specs(
    state: StateDir,
    joined: JoinedNode,
    options: NodeOptions,
    environment: Mapping[str, str],
    address: tuple[str, int],
) -> list[ProcessSpec]:
    processes = ManagerProcesses(
        state=state,
        environment=environment,
        driver=options.driver,
        scheduler_url=joined.scheduler_url,
        cores=options.cores,
        ends_at=options.ends_at,
        delegation=await asyncio.to_thread(delegation_command, environment),
    )
    has_launcher = joined.kind == "cpu" and options.driver != "simulated"
    manager = processes.manager(
        joined.kind,
        joined.identity,
        host=address[0],
        port=address[1],
        database_url=joined.database_url_in(state.path),
        secrets=joined.secrets,
    )
    return [*([processes.launcher(joined.name)] if has_launcher else []), manager]


def _own_address(joined: JoinedNode) -> str:
    parts = urlsplit(joined.gateway_url)
    return local_address_towards(parts.hostname or "localhost", parts.port or 80)


async def _report(joined: JoinedNode, directory: Path) -> dict[str, object]:
    """Return what the node has registered."""
    async with connected_node(joined, directory) as node:
        registered = await node.registered()
    return {
        "name": joined.name,
        "kind": joined.kind,
        "pool": joined.pool,
        "gateway_url": joined.gateway_url,
        "version": version("arl-tangram"),
        "system_version": joined.version,
        **registered,
    }
