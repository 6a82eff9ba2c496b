"""Start one machine, keep it running until it is stopped, then drain it."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from errno import EACCES, EADDRINUSE
from logging.handlers import RotatingFileHandler
from pathlib import Path
from urllib.parse import urlsplit

from arl_kit.child_process import UnixAccount
from arl_local.database import ensure_embedded_database, postgres_spec, provision_database
from arl_local.delegated_cgroup import delegation_command
from arl_local.postgres.embedded_postgres import EmbeddedPostgres
from arl_local.postgres.postgres_paths import PostgresPaths
from arl_local.postgres.shared_postgres import SHARED_SETTINGS, relay_variables
from arl_local.process_plan import DATABASE_RELAY, DEFAULT_COMMANDS, LocalOptions, ProcessPlan, node_of, process_names
from arl_local.service_accounts import NO_HOME, SERVICE_ACCOUNT_FILE, account_problem, service_accounts
from arl_local.settings_check import check_settings
from arl_local.state_dir import StateDir, bind, choose_ports
from arl_local.supervisor import ProcessSpec, Supervisor
from arl_store.files import replace_file

__all__ = ["run", "set_up_logging", "stop_event"]

_GATEWAY_PORT, _SCHEDULER_PORT, _DATABASE_PORT = 8700, 8702, 8709
_RECOVERY_TIMEOUT_S = 600.0
_START_TIMEOUT_S = 60.0

log = logging.getLogger(__name__)


async def run(
    options: LocalOptions,
    environment: Mapping[str, str],
    *,
    until_eof: bool = False,
    commands: Mapping[str, tuple[str, ...]] = DEFAULT_COMMANDS,
) -> None:
    """Run until SIGTERM, SIGINT or SIGHUP, or the end of standard input with `until_eof`. Return when all has stopped.

    The caller has locked the state directory.
    """
    state = StateDir(options.directory)
    state.create()
    set_up_logging(state)
    stop = stop_event(until_eof=until_eof)
    with ExitStack() as reserved:
        ports = _choose_ports(state, options, environment, reserved)
        await _run_until_stopped(state, options, environment, commands, ports=ports, stop=stop)


async def _run_until_stopped(
    state: StateDir,
    options: LocalOptions,
    environment: Mapping[str, str],
    commands: Mapping[str, tuple[str, ...]],
    *,
    ports: Mapping[str, int],
    stop: asyncio.Event,
) -> None:
    async with Supervisor(state.path) as supervisor:
        bringing_up = asyncio.create_task(_start_all(supervisor, state, options, environment, commands, ports))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait((bringing_up, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not bringing_up.done():
            bringing_up.cancel()
            await asyncio.wait((bringing_up,))
            return
        bringing_up.result()
        await stopping


async def _start_all(
    supervisor: Supervisor,
    state: StateDir,
    options: LocalOptions,
    environment: Mapping[str, str],
    commands: Mapping[str, tuple[str, ...]],
    ports: Mapping[str, int],
) -> None:
    names = process_names(options.nodes, environment)
    plan = ProcessPlan(
        options=options,
        state=state,
        ports=ports,
        database_urls=dict.fromkeys(names, "postgresql://"),
        environment=environment,
        commands=commands,
        delegation=await asyncio.to_thread(delegation_command, environment),
    )
    supervisor.report("starting", "checking the settings")
    await check_settings(plan.configured_specs())
    owner_url = options.database_url or await _start_postgres(supervisor, state, is_shared=options.listen is not None)
    supervisor.report("starting", "bringing the schema up to date")
    nodes = {name: node for name in names if (node := node_of(name)) is not None}
    urls = await provision_database(owner_url, state, nodes, take_over=options.take_over)
    plan = replace(plan, database_urls=urls, relay=relay_variables(state, options))
    supervisor.report("starting", "starting the services")
    specs = await asyncio.to_thread(_with_accounts, plan.specs(), state)
    for spec in specs:
        supervisor.start(spec)
    await supervisor.wait_ready(*(spec.name for spec in specs), timeout_s=_START_TIMEOUT_S)
    state.publish_endpoints(plan.endpoints)
    supervisor.report("ready")


def _with_accounts(specs: Sequence[ProcessSpec], state: StateDir) -> list[ProcessSpec]:
    """Give services that need no rights of root an account, if root starts them and the account can run them."""
    accounts = service_accounts(state.path)
    able = [spec for spec in specs if spec.name in accounts and not _has_privileged_port(spec)]
    # The broker is checked apart from the others, because its key files may belong to root.
    groups = [[spec for spec in able if (spec.name == "api") is is_broker] for is_broker in (False, True)]
    problems = [account_problem(group, accounts[group[0].name]) if group else None for group in groups]
    own = [spec for group, problem in zip(groups, problems, strict=True) if problem is None for spec in group]
    for group, problem in zip(groups, problems, strict=True):
        if problem is not None:
            names = ", ".join(spec.name for spec in group)
            log.warning("%s run as root, because an unprivileged user cannot run them: %s", names, problem)
    found = f"root: {problems[0]}" if problems[0] is not None else "own"
    replace_file(
        state.path / SERVICE_ACCOUNT_FILE,
        found if problems[1] is None else f"{found}\napi: uid {accounts['api'].uid}: {problems[1]}",
    )
    return [_under_account(spec, accounts[spec.name], state) if spec in own else spec for spec in specs]


def _under_account(spec: ProcessSpec, account: UnixAccount, state: StateDir) -> ProcessSpec:
    """Return the spec of a service with an account. The account has no home and cannot reach the state directory."""
    env = {**spec.env, "HOME": NO_HOME}
    if "TANGRAM_SPOOL_DIR" in env:
        spool = PostgresPaths.for_state_dir(state.path).root / f"spool-{spec.name}"
        spool.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chown(spool, account.uid, account.gid)
        env["TANGRAM_SPOOL_DIR"] = str(spool)
    return replace(spec, account=account, env=env)


def _has_privileged_port(spec: ProcessSpec) -> bool:
    return int(spec.env["TANGRAM_PORT"]) < _first_unprivileged_port()


def _first_unprivileged_port() -> int:
    return int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text())


async def _start_postgres(supervisor: Supervisor, state: StateDir, *, is_shared: bool) -> str:
    supervisor.report("starting", "preparing PostgreSQL")
    server = EmbeddedPostgres(state.path, settings=SHARED_SETTINGS if is_shared else None)
    server.prepare()
    supervisor.start(postgres_spec(server))
    await supervisor.wait_ready("postgres", timeout_s=_RECOVERY_TIMEOUT_S)
    return await ensure_embedded_database(server)


def _choose_ports(
    state: StateDir, options: LocalOptions, environment: Mapping[str, str], reserved: ExitStack
) -> dict[str, int]:
    """Return the ports of the last start if they are still free. A port chosen by the user must be free."""
    last = {name: port for name, url in state.endpoints().items() if (port := urlsplit(url).port)}
    names = process_names(options.nodes, environment)
    wanted = {name: ("127.0.0.1", (last[name],) if name in last else ()) for name in names}
    preferences = (options.port,) if options.port else (*wanted["gateway"][1], _GATEWAY_PORT)
    wanted["gateway"] = options.listen or options.host, preferences
    known = state.cluster_ports() if options.listen is not None else {}
    if options.listen is not None:
        fixed = {"gateway": _GATEWAY_PORT, "scheduler": _SCHEDULER_PORT, DATABASE_RELAY: _DATABASE_PORT}
        wanted |= {name: (options.listen, (known.get(name, port),)) for name, port in fixed.items()}
        if options.port:
            wanted["gateway"] = options.listen, (options.port,)
    ports = choose_ports(wanted, reserved)
    if moved := [name for name, port in known.items() if ports[name] != port and name != "gateway"]:
        raise OSError(
            f"port {known[moved[0]]} of {moved[0]} on {options.listen} is taken, and the nodes know it. Free the port"
        )
    if options.listen is not None:
        state.store_cluster_ports({name: ports[name] for name in fixed})
    if options.port and ports["gateway"] != options.port:
        raise OSError(_port_problem(options.listen or options.host, options.port))
    return ports


def _port_problem(host: str, port: int) -> str:
    """Return the reason why the gateway cannot have a port that the user chose."""
    try:
        bind(host, port).close()
    except PermissionError:
        first = _first_unprivileged_port()
        return f"only root may use port {port}; choose a port from {first} on with --port, or start as root"
    except OSError as error:
        if error.errno not in (EADDRINUSE, EACCES):
            return f"port {port} on {host} cannot be used: {error.strerror}"
    return f"port {port} on {host} is taken; choose another with --port"


def stop_event(*, until_eof: bool) -> asyncio.Event:
    """Return an event that a stop signal sets, or the end of standard input with `until_eof`."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    if until_eof:
        stdin = sys.stdin.fileno()

        def on_input() -> None:
            if not os.read(stdin, 4096):
                loop.remove_reader(stdin)
                stop.set()

        loop.add_reader(stdin, on_input)
    return stop


def set_up_logging(state: StateDir) -> None:
    """Write the log of this process to a file of the state directory."""
    handler = RotatingFileHandler(state.path / "logs" / "supervisor.log", maxBytes=5 << 20, backupCount=1)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
