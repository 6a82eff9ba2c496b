"""Work of a node's pod beside its manager, with the credentials of this node only.

`node.py prepare` copies the secrets of this node from those of all nodes of its kind, and reopens a node that was
drained. `node.py drain` stops new work and waits until the node is empty.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg

from arl_local.join.node_repository import NodeConnection

CONNECT_TIMEOUT_S = 15.0
POLL_S = 0.5
RETRY_S = 1.0
REPORT_S = 30.0
"""Seconds after the deadline in which the node may still report that its actions have ended."""
IS_DRAINED = "select drain_requested_at is not null from nodes where name = $1"
HAS_CREDENTIALS = "select credential_id is not null from node_roles where role = session_user"


def copy_secrets(name: str, source: Path, target: Path) -> None:
    """Copy the files `NAME.SETTING` to `SETTING`. Raises SystemExit if there are none."""
    found = sorted(source.glob(f"{name}.tangram_*"))
    if not found:
        raise SystemExit(f"the Secret has no credentials of {name}: raise maxReplicas of this kind, and upgrade")
    for path in found:
        copy = target / path.name.removeprefix(f"{name}.")
        copy.unlink(missing_ok=True)
        descriptor = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
        with os.fdopen(descriptor, "wb") as file:
            file.write(path.read_bytes())


@asynccontextmanager
async def connected(name: str, secrets: Path) -> AsyncIterator[tuple[asyncpg.Connection, NodeConnection]]:
    """Connect with the role of the node."""
    url = (secrets / "tangram_database_url").read_text().strip()
    connection = await asyncpg.connect(url, timeout=CONNECT_TIMEOUT_S)
    try:
        yield connection, NodeConnection(connection, name)
    finally:
        await connection.close()


async def reopen(name: str, secrets: Path) -> None:
    """Allow new work if the node was drained. A node that is only cordoned stays so."""
    async with connected(name, secrets) as (connection, node):
        if await connection.fetchval(IS_DRAINED, name):
            await node.reopen()


async def drain_when_reachable(name: str, secrets: Path, deadline_s: float) -> int:
    """Drain the node, and wait for Postgres until the deadline: the manager holds results that are not written yet."""
    ends_at = time.monotonic() + deadline_s
    while True:
        try:
            return await drain(name, secrets, max(ends_at - time.monotonic(), 0))
        except (OSError, TimeoutError, asyncpg.PostgresError):
            if time.monotonic() >= ends_at:
                raise
        await asyncio.sleep(RETRY_S)


async def drain(name: str, secrets: Path, deadline_s: float) -> int:
    """Drain the node. Return the number of actions and environments that are left."""
    async with connected(name, secrets) as (connection, node):
        if not await connection.fetchval(HAS_CREDENTIALS):
            print("this node may not drain itself: its Secret was not written by the chart", file=sys.stderr)
            return 0
        await node.drain(deadline_s)
        ends_at = time.monotonic() + deadline_s + REPORT_S
        while (left := await node.count_left()) and time.monotonic() < ends_at:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)  # the manager writes the rows
        return left


def main() -> int:
    """Run the command. A node that cannot be drained stops all the same: its actions are those of a lost node."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["prepare", "drain"])
    parser.add_argument("--deadline", type=float, default=600.0, metavar="SECONDS")
    parser.add_argument("--source", type=Path, default=Path("/all-secrets"))
    parser.add_argument("--secrets", type=Path, default=Path("/secrets"))
    chosen = parser.parse_args()
    name = os.environ["TANGRAM_NODE_NAME"]
    try:
        if chosen.command == "prepare":
            copy_secrets(name, chosen.source, chosen.secrets)
            asyncio.run(reopen(name, chosen.secrets))
            return 0
        left = asyncio.run(drain_when_reachable(name, chosen.secrets, chosen.deadline))
    except (OSError, TimeoutError, asyncpg.PostgresError) as error:
        print(f"Postgres does not answer the node {name}: {type(error).__name__}", file=sys.stderr)
        return 1
    if left:
        print(f"{left} actions and environments are left after the deadline", file=sys.stderr)
    return 1 if left else 0


if __name__ == "__main__":
    raise SystemExit(main())
