"""`python -m arl_local.join.drain`: drain the node of a state directory, and wait until it is empty."""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import asyncpg

from arl_local.join.credentials import DamagedCredentials, JoinedNode
from arl_local.join.node_repository import connected_node

__all__ = ["MAX_DEADLINE_S", "drain_node", "main", "reopen_node"]

MAX_DEADLINE_S = 30 * 86_400.0
_POLL_S = 0.5
_GRACE_S = 30.0
"""Seconds after the deadline in which the node may still report that its actions have ended."""


async def drain_node(joined: JoinedNode, directory: Path, *, deadline_s: float) -> int:
    """Drain the node with its own credentials. Return the number of actions and environments that are left.

    If some are left or the call is cancelled, the node accepts work again. Raises the errors of asyncpg and OSError.
    """
    try:
        left = await _wait_until_drained(joined, directory, deadline_s)
    except asyncio.CancelledError:
        await reopen_node(joined, directory)
        raise
    if left:
        await reopen_node(joined, directory)
    return left


async def _wait_until_drained(joined: JoinedNode, directory: Path, deadline_s: float) -> int:
    async with connected_node(joined, directory) as node:
        await node.drain(deadline_s)
        ends_at = time.monotonic() + deadline_s + _GRACE_S
        while True:
            left = await node.count_left()
            if left == 0 or time.monotonic() > ends_at:
                return left
            await asyncio.sleep(_POLL_S)


async def reopen_node(joined: JoinedNode, directory: Path) -> None:
    """Allow new work on the node if its own drain has closed it."""
    async with connected_node(joined, directory) as node:
        await node.reopen()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0: the node is empty; 1: it is not, or Postgres is not reachable."""
    parser = argparse.ArgumentParser(prog="python -m arl_local.join.drain", description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="state directory of the node")
    parser.add_argument("--deadline", type=float, default=600.0, metavar="SECONDS")
    chosen = parser.parse_args(arguments)
    if not 0 <= chosen.deadline <= MAX_DEADLINE_S:
        return _failed(f"--deadline {chosen.deadline:g}: must be from 0 s to 30 days ({MAX_DEADLINE_S:.0f} s)")
    try:
        joined = JoinedNode.load(chosen.dir)
        if joined is None:
            return _failed(f"{chosen.dir} has no credentials of a node")
        left = asyncio.run(drain_node(joined, chosen.dir, deadline_s=chosen.deadline))
    except KeyboardInterrupt:
        return _failed("interrupted; the node accepts work again")
    except DamagedCredentials as error:
        return _failed(str(error))
    except (OSError, TimeoutError, asyncpg.PostgresConnectionError) as error:
        return _failed(f"the node cannot be drained, because Postgres does not answer: {error or type(error).__name__}")
    except asyncpg.PostgresError as error:
        return _failed(f"the node cannot be drained: {error}")
    if left:
        return _failed(f"{left} actions and environments are left after the deadline; the node accepts work again")
    return 0


def _failed(message: str) -> int:
    print(message, file=sys.stderr)  # noqa: T201 - a command line
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
