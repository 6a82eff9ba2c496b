"""`python -m arl_local`: run one machine in the foreground until it is stopped."""

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import asyncpg
import sqlalchemy.exc

from arl_kit.telemetry.otel import unknown_propagators
from arl_local.env_routing import unknown_settings
from arl_local.join.networks import cluster_networks
from arl_local.manager_processes import LAUNCHER_EXIT_NO_SANDBOX
from arl_local.postgres.embedded_postgres import EmbeddedPostgres, EmbeddedPostgresError
from arl_local.process_plan import DEFAULT_COMMANDS, LocalOptions
from arl_local.settings_check import BadSettings
from arl_local.state_dir import AlreadyUp, StateDir, bind, default_directory
from arl_local.supervisor import StartFailed
from arl_local.up import run
from arl_wire.cells import MAX_CELL

__all__ = ["DRIVERS", "EXPECTED_ERRORS", "main"]

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_ALREADY_UP = 4
EXIT_NO_SANDBOX = 5

DRIVERS = ("auto", "namespaces", "landlock", "unsafe-local", "simulated")
EXPECTED_ERRORS = (EmbeddedPostgresError, OSError, RuntimeError, asyncpg.PostgresError, asyncpg.InterfaceError)


def main(arguments: Sequence[str] | None = None, *, commands: Mapping[str, tuple[str, ...]] = DEFAULT_COMMANDS) -> int:
    """Run the command and return its exit code.

    0: stopped. 1: failed. 2: a setting is wrong. 4: already up. 5: no sandbox works here.
    """
    chosen = _parse(arguments)
    try:
        with StateDir(chosen.dir).lock():
            if chosen.purge:
                _purge(chosen.dir)
            else:
                _print_warnings(unknown_settings(os.environ))
                _print_warnings(
                    [f"OTEL_PROPAGATORS: {name!r} is not installed" for name in unknown_propagators(os.environ)]
                )
                cell = _cell(chosen.dir, chosen.cell)
                environment = os.environ | ({"TANGRAM_CELL": str(cell)} if cell else {})
                asyncio.run(run(_options(chosen), environment, until_eof=chosen.until_eof, commands=commands))
    except AlreadyUp:
        print(f"already up in {chosen.dir}", file=sys.stderr)  # noqa: T201 - a command line
        return EXIT_ALREADY_UP
    except BadSettings as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command line
        return EXIT_USAGE
    except StartFailed as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command line
        return EXIT_NO_SANDBOX if error.exit_code == LAUNCHER_EXIT_NO_SANDBOX else EXIT_FAILED
    except (*EXPECTED_ERRORS, sqlalchemy.exc.SQLAlchemyError) as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command line
        return EXIT_FAILED
    return 0


def _print_warnings(sentences: Sequence[str]) -> None:
    """Print to standard error, which `tangram up` shows."""
    for sentence in sentences:
        print(sentence, file=sys.stderr, flush=True)  # noqa: T201 - a command line


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m arl_local", description=__doc__)
    parser.add_argument("--dir", type=Path, default=default_directory(os.environ))
    parser.add_argument("--host", default="127.0.0.1", help="address of the gateway")
    parser.add_argument("--port", type=int, help="port of the gateway; default 8700, or any free port")
    parser.add_argument("--listen", metavar="ADDRESS", help="address on which nodes of other machines may join")
    parser.add_argument(
        "--network", action="append", default=[], metavar="CIDR", help="network of the nodes; default: that of ADDRESS"
    )
    parser.add_argument("--cores", help="number of cores that actions may use")
    parser.add_argument("--nodes", type=int, default=1, help="number of simulated nodes, each with --cores cores")
    parser.add_argument("--driver", choices=DRIVERS, default=os.environ.get("TANGRAM_DRIVER", "auto"))
    parser.add_argument("--unsafe-local", action="store_const", const="unsafe-local", dest="driver")
    parser.add_argument("--cell", type=int, help="number of this cell; the first start stores it")
    parser.add_argument("--until-eof", action="store_true", help="also stop when standard input ends")
    parser.add_argument("--take-over", action="store_true", help="use a database that another state directory owns")
    parser.add_argument("--purge", action="store_true", help="remove the state of a stopped system")
    chosen = parser.parse_args(arguments)
    if chosen.nodes < 1 or (chosen.nodes > 1 and chosen.driver != "simulated"):
        parser.error("--nodes: only simulated nodes can share a machine")
    if chosen.port is not None and not 1 <= chosen.port <= 65535:
        parser.error(f"--port is {chosen.port}; it must be from 1 to 65535")
    if chosen.network and chosen.listen is None:
        parser.error("--network: only with --listen")
    return chosen


def _options(chosen: argparse.Namespace) -> LocalOptions:
    """Return the options. Raises `BadSettings` for a wrong variable, which argparse does not check."""
    if chosen.driver not in DRIVERS:
        raise BadSettings(f"TANGRAM_DRIVER is {chosen.driver!r}: must be one of {', '.join(DRIVERS)}")
    database_url = os.environ.get("TANGRAM_DATABASE_URL")
    if database_url and not database_url.startswith(("postgresql://", "postgres://")):
        raise BadSettings("TANGRAM_DATABASE_URL: must begin with postgresql://")
    networks = _networks(chosen.listen, chosen.network) if chosen.listen is not None else ()
    return LocalOptions(
        directory=chosen.dir,
        host=chosen.host,
        port=chosen.port,
        listen=chosen.listen,
        networks=networks,
        cores=chosen.cores,
        nodes=chosen.nodes,
        driver=chosen.driver,
        database_url=database_url,
        take_over=chosen.take_over,
    )


def _cell(directory: Path, chosen: int | None) -> int:
    """Return the number of this cell. Raises `BadSettings` if it is wrong or not that of earlier starts."""
    given = str(chosen) if chosen is not None else os.environ.get("TANGRAM_CELL", "")
    if given and not (given.isascii() and given.isdigit() and int(given) <= MAX_CELL):
        raise BadSettings(f"--cell or TANGRAM_CELL is {given[:20]!r}: must be a number from 0 to {MAX_CELL}")
    try:
        return StateDir(directory).cell(int(given) if given else None)
    except ValueError as error:
        raise BadSettings(str(error)) from None


def _networks(listen: str, chosen: Sequence[str]) -> tuple[str, ...]:
    """Return the networks of the nodes. Raises `BadSettings` if an argument is wrong."""
    try:
        networks = cluster_networks(listen, chosen)
        bind(listen, 0).close()
    except ValueError as error:
        raise BadSettings(str(error)) from None
    except OSError as error:
        raise BadSettings(f"--listen {listen}: not an address of this machine ({error.strerror})") from None
    return networks


def _purge(directory: Path) -> None:
    StateDir(directory).check_purgeable()
    EmbeddedPostgres(directory).purge()
    StateDir(directory).purge()


if __name__ == "__main__":
    raise SystemExit(main())
