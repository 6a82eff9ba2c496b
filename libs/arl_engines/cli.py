"""`engine`: run a controller that keeps pools of nodes on an engine."""

import asyncio
import logging
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from arl_engines.engine import ClusterEngine, PoolSpec
from arl_engines.pool_option import parse_pool
from arl_tangram.cli.client import connected_client
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import EXIT_FAILED, EXIT_NOT_RUNNING, EXIT_USAGE, fail, fail_with, print_progress
from arl_wire.errors import Forbidden, TangramError, Unauthenticated

__all__ = ["register"]

RETRY_TIMEOUT_S = 2.0
"""Seconds of retries of one request. A longer wait would outlast the lease of the pool."""
SLURM_TOKEN_TTL_S = 7 * 86_400.0
"""Seconds for which the join token of a job is valid: the job may wait for days in the queue."""

group = typer.Typer(no_args_is_help=True, help="Run a controller that keeps pools of nodes on an engine.")

PoolOption = Annotated[
    list[str],
    typer.Option(
        "--pool",
        metavar="NAME:kind=cpu,min=1,max=4",
        help="Pool to control; repeat it for further pools. Further keys: cores (of each node), driver, target (seconds"
        " to work off the backlog), cooldown (seconds before the pool shrinks) and drain (seconds that a drained node"
        " has).",
    ),
]
StopOption = Annotated[
    bool, typer.Option("--stop-nodes", help="On Ctrl-C, drain and stop the nodes. A second Ctrl-C leaves them.")
]
NodePythonOption = Annotated[
    str, typer.Option(help="Interpreter on the machines of nodes that has the packages of this command.")
]
NodeDirOption = Annotated[
    str, typer.Option(help="Directory on the machines of nodes for their state. It begins with / or ~.")
]
LogDirOption = Annotated[
    Path | None,
    typer.Option(
        help="Directory for the output of jobs, the same here and on the Slurm nodes.",
        show_default="pools/slurm/logs of the state directory",
    ),
]
DEFAULT_NODE_DIR = "~/.local/state/tangram-nodes"


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(group, name="engine", rich_help_panel="Operate")


@group.command()
def local(directory: DirOption, pool: PoolOption, stop_nodes: StopOption = False) -> None:
    """Run nodes as processes of this machine, in the foreground.

    Ctrl-C stops the controller and leaves the nodes. The next start finds them again.
    """
    from arl_engines.local.local_engine import LocalEngine
    from arl_engines.node_join import JoinedNodeCommands

    pools = _parse_pools(pool)
    _check_directory(directory)
    commands = JoinedNodeCommands(directory)
    _run_controller(directory, LocalEngine(directory / "pools", commands), pools, stop_nodes=stop_nodes)


@group.command()
def ray(
    directory: DirOption,
    pool: PoolOption,
    address: Annotated[
        str, typer.Option(envvar="RAY_ADDRESS", help="Address of the Ray cluster: HOST:PORT of its head.")
    ] = "auto",
    ray_python: Annotated[
        str, typer.Option(help="Interpreter on this machine with the cluster's versions of Python and Ray.")
    ] = "python3",
    ray_token: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="File with the token of the cluster. Else RAY_AUTH_TOKEN_PATH is used."),
    ] = None,
    node_python: NodePythonOption = sys.executable,
    node_dir: NodeDirOption = DEFAULT_NODE_DIR,
    resource: Annotated[
        str | None,
        typer.Option(help="Use only Ray nodes with this custom resource, and reserve 0.01 of it. Else all Ray nodes."),
    ] = None,
    autoscale: Annotated[
        bool, typer.Option("--autoscale", help="Request Ray nodes with --resource from Ray's autoscaler (v2).")
    ] = False,
    stop_nodes: StopOption = False,
) -> None:
    """Run nodes on the nodes of a Ray cluster, at most one of a pool on each. Runs in the foreground.

    Ctrl-C stops the controller and leaves the nodes. The next start finds them again.
    """
    from arl_engines.node_join import JoinedNodeCommands
    from arl_engines.ray.driver_process import DriverProcess, ray_environment
    from arl_engines.ray.ray_engine import RayEngine, RayOptions

    pools = _parse_pools(pool)
    if autoscale and resource is None:
        fail("--autoscale needs --resource: the custom resource of the Ray nodes to request", EXIT_USAGE)
    _check_node_directory(node_dir)
    _check_directory(directory)

    driver = DriverProcess(
        ray_python,
        address=address,
        namespace=asyncio.run(_ray_namespace(directory / "pools" / "ray")),
        env=ray_environment(os.environ, ray_token),
        log=directory / "pools" / "ray" / "driver.log",
    )
    options = RayOptions(node_python=node_python, node_directory=node_dir, resource=resource, autoscale=autoscale)
    commands = JoinedNodeCommands(directory, _own_variables(), python=node_python)
    engine = RayEngine(directory / "pools", commands, driver, options)
    _run_controller(directory, engine, pools, stop_nodes=stop_nodes)


@group.command()
def slurm(
    directory: DirOption,
    pool: PoolOption,
    partition: Annotated[str | None, typer.Option(help="Partition of the jobs.", show_default="that of Slurm")] = None,
    account: Annotated[str | None, typer.Option(help="Account of the jobs.")] = None,
    qos: Annotated[str | None, typer.Option(help="Quality of service of the jobs.")] = None,
    time: Annotated[
        str | None, typer.Option(help="Time limit of a job, as for sbatch.", show_default="that of the partition")
    ] = None,
    signal_before: Annotated[
        int, typer.Option(min=90, max=86_400, help="Seconds before the time limit at which a node begins to drain.")
    ] = 300,
    gres: Annotated[str | None, typer.Option(help="Generic resources of each job, such as gpu:8.")] = None,
    sbatch_option: Annotated[
        list[str] | None, typer.Option(metavar="OPTION", help="Further option of sbatch; repeat it for several.")
    ] = None,
    shared: Annotated[
        bool, typer.Option("--shared", help="Do not reserve whole Slurm nodes. Jobs of a pool start one by one.")
    ] = False,
    node_python: NodePythonOption = sys.executable,
    node_dir: NodeDirOption = DEFAULT_NODE_DIR,
    log_dir: LogDirOption = None,
    stop_nodes: StopOption = False,
) -> None:
    """Run nodes as jobs of a Slurm cluster, one job per node. Runs in the foreground, on a login node.

    Ctrl-C stops the controller and leaves the nodes.
    """
    from arl_engines.node_join import JoinedNodeCommands
    from arl_engines.slurm.slurm_commands import SlurmCommands
    from arl_engines.slurm.slurm_engine import SlurmEngine, SlurmOptions

    pools = _parse_pools(pool)
    _check_node_directory(node_dir)
    memory_mib = _shared_memory_mib(pools) if shared else None
    chosen = {"--partition": partition, "--account": account, "--qos": qos, "--time": time, "--gres": gres}
    options = SlurmOptions(
        node_python=node_python,
        node_directory=node_dir,
        log_directory=(log_dir or directory / "pools" / "slurm" / "logs").absolute(),
        sbatch=(*(f"{name}={value}" for name, value in chosen.items() if value is not None), *(sbatch_option or ())),
        signal_before_s=signal_before,
        is_exclusive=not shared,
        memory_mib=memory_mib,
    )
    _check_slurm(time, options.min_time_limit_s)
    _check_directory(directory)
    commands = JoinedNodeCommands(directory, _own_variables(), python=node_python, token_ttl_s=SLURM_TOKEN_TTL_S)
    engine = SlurmEngine(directory / "pools", commands, SlurmCommands(), options)
    _run_controller(directory, engine, pools, stop_nodes=stop_nodes)


def _check_node_directory(directory: str) -> None:
    if not directory.startswith(("/", "~")):
        fail(f"--node-dir {directory!r}: must begin with / or ~", EXIT_USAGE)


def _shared_memory_mib(pools: Sequence[PoolSpec]) -> int:
    """Return the memory of a job that shares a Slurm node. Cores must be chosen too: a node sees all of both."""
    if unsized := [pool.name for pool in pools if pool.kind == "cpu" and pool.cores is None]:
        fail(f"--shared needs cores in --pool {unsized[0]}, such as {unsized[0]}:cores=8", EXIT_USAGE)
    text = os.environ.get("TANGRAM_MEMORY_MIB", "")
    if not text.isdecimal() or int(text) < 64:
        fail(
            "--shared needs the variable TANGRAM_MEMORY_MIB, at least 64: the memory that each job requests and its"
            " node offers",
            EXIT_USAGE,
        )
    return int(text)


def _check_slurm(text: str | None, least_s: float) -> None:
    """Exit with an error if the time limit `text` is below `least_s`, or if a command of Slurm is missing."""
    from arl_engines.slurm.slurm_commands import parse_duration_s

    limit_s = parse_duration_s(text, is_option=True) if text is not None else None
    if limit_s is not None and limit_s < least_s:
        fail(
            f"--time {text}: must be at least {least_s:.0f} s, because nodes drain before the time limit; see"
            " --signal-before",
            EXIT_USAGE,
        )
    if missing := [name for name in ("sbatch", "squeue", "scancel") if shutil.which(name) is None]:
        fail(f"{missing[0]} is not on PATH: run this command on a machine that submits jobs to Slurm", EXIT_USAGE)


def _own_variables() -> dict[str, str]:
    """Return the settings of nodes in the environment of this process."""
    return {name: value for name, value in os.environ.items() if name.startswith("TANGRAM_")}


async def _ray_namespace(directory: Path) -> str:
    """Return the namespace of the actors of this system."""
    from arl_engines.node_names import locked_directory
    from arl_engines.node_table import table_namespace

    async with locked_directory(directory):
        return table_namespace(directory / "nodes.json")


def _check_directory(directory: Path) -> None:
    if not (directory / "api_key").exists():
        fail(f"no system was started in {directory}. Start one: tangram up", EXIT_NOT_RUNNING)


def _parse_pools(options: Sequence[str]) -> list[PoolSpec]:
    try:
        pools = [parse_pool(option) for option in options]
    except ValueError as error:
        fail(str(error), EXIT_USAGE)
    names = [pool.name for pool in pools]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        fail(f"--pool: pool {repeated[0]!r} is given twice", EXIT_USAGE)
    return pools


def _run_controller(directory: Path, engine: ClusterEngine, pools: Sequence[PoolSpec], *, stop_nodes: bool) -> None:
    """Control the pools until SIGINT or SIGTERM."""
    with connected_client(directory) as tangram:
        tangram.pools()  # a wrong address or key is an error now, and not in the log
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        asyncio.run(_control(directory, engine, pools, stop_nodes=stop_nodes))
    except (Unauthenticated, Forbidden) as error:
        fail_with(error, EXIT_USAGE)
    except TangramError as error:
        fail_with(error, EXIT_FAILED)


async def _control(directory: Path, engine: ClusterEngine, pools: Sequence[PoolSpec], *, stop_nodes: bool) -> None:
    from arl_engines.controller import PoolController
    from arl_tangram.async_client import AsyncTangram
    from arl_tangram.transport.connection import resolve_connection

    stop, abort = asyncio.Event(), asyncio.Event()

    def interrupt() -> None:
        """Stop the controller; at the second signal, leave the nodes that are still there."""
        if stop.is_set():
            abort.set()
        elif stop_nodes:
            print_progress("draining and stopping the nodes; press Ctrl-C again to leave them")
        else:
            print_progress("the controller stops; its nodes stay")
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, interrupt)
    connection = resolve_connection(directory=directory)
    async with AsyncTangram(connection.url, connection.api_key, retry_timeout_s=RETRY_TIMEOUT_S) as client:
        await PoolController(engine, pools, client).run(stop, stop_nodes=stop_nodes, abort=abort)
