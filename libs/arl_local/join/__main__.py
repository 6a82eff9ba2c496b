"""`python -m arl_local.join`: run a joined node in the foreground until it is stopped."""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from arl_local.__main__ import DRIVERS, EXIT_ALREADY_UP, EXIT_FAILED, EXIT_NO_SANDBOX, EXIT_USAGE, EXPECTED_ERRORS
from arl_local.join.credentials import DamagedCredentials, JoinedNode
from arl_local.join.exchange import JoinFailed, exchange_token
from arl_local.join.join_token import InvalidJoinToken, JoinToken
from arl_local.join.node_up import NodeOptions, run_node
from arl_local.manager_processes import LAUNCHER_EXIT_NO_SANDBOX
from arl_local.settings_check import BadSettings
from arl_local.state_dir import AlreadyUp, StateDir
from arl_local.supervisor import StartFailed

__all__ = ["main"]

TOKEN_VARIABLE = "TANGRAM_JOIN_TOKEN"  # noqa: S105 - the name of a variable


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code, as `python -m arl_local` does."""
    chosen = _parse(arguments)
    state = StateDir(chosen.dir)
    try:
        with state.lock():
            state.create()
            joined = _joined_node(state, chosen.join, os.environ.get(TOKEN_VARIABLE))
            options = NodeOptions(
                address=chosen.address,
                port=chosen.port,
                driver=chosen.driver,
                cores=chosen.cores,
                ends_at=time.time() + chosen.walltime if chosen.walltime is not None else None,
            )
            asyncio.run(run_node(state, joined, options, os.environ, until_eof=chosen.until_eof))
    except AlreadyUp:
        return _failed(f"already up in {chosen.dir}", EXIT_ALREADY_UP)
    except (BadSettings, InvalidJoinToken) as error:
        return _failed(error, EXIT_USAGE)
    except StartFailed as error:
        return _failed(error, EXIT_NO_SANDBOX if error.exit_code == LAUNCHER_EXIT_NO_SANDBOX else EXIT_FAILED)
    except (*EXPECTED_ERRORS, JoinFailed, DamagedCredentials) as error:
        return _failed(error, EXIT_FAILED)
    return 0


def _joined_node(state: StateDir, url: str | None, token: str | None) -> JoinedNode:
    """Return the node of this directory. A token that it has not used yet makes it another node.

    Raises `JoinFailed` and `InvalidJoinToken`.
    """
    known = JoinedNode.load(state.path)
    given = JoinToken.parse(token) if token else None
    if known is not None and (given is None or given.id == known.token_id):
        return known
    if (state.path / "api_key").exists():
        raise JoinFailed(f"{state.path} belongs to `tangram up`; choose another state directory for the node: --dir")
    if given is None or url is None:
        raise JoinFailed(
            f"{state.path} has no credentials of a node. Create a token on the control machine (tangram nodes"
            " join-token create) and start the node with it: tangram node up --join URL --token TOKEN"
        )
    return exchange_token(url, given, state.path)


def _failed(message: object, code: int) -> int:
    print(message, file=sys.stderr)  # noqa: T201 - a command line
    return code


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m arl_local.join", description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="state directory of the node")
    parser.add_argument("--join", metavar="URL", help=f"address of the gateway; the token is in {TOKEN_VARIABLE}")
    parser.add_argument("--address", help="address of this machine at which the system reaches the node")
    parser.add_argument("--port", type=int, help="port of the manager; default 8703, or any free port")
    parser.add_argument("--cores", help="number of cores that actions may use")
    parser.add_argument("--driver", choices=DRIVERS, default=os.environ.get("TANGRAM_DRIVER", "auto"))
    parser.add_argument("--walltime", type=float, metavar="SECONDS", help="seconds until this machine ends the node")
    parser.add_argument("--unsafe-local", action="store_const", const="unsafe-local", dest="driver")
    parser.add_argument("--until-eof", action="store_true", help="also stop when standard input ends")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
