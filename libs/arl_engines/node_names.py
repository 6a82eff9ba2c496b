"""The lock of an engine's directory, and the names of new nodes."""

import asyncio
import fcntl
import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from arl_engines.engine import ClusterEngineError
from arl_store.files import replace_file

__all__ = ["locked_directory", "new_node_name"]

LOCK_ATTEMPTS, LOCK_PAUSE_S = 40, 0.05
"""Attempts to lock a directory, and seconds between them."""


@asynccontextmanager
async def locked_directory(directory: Path) -> AsyncIterator[None]:
    """Create and lock a directory. Raises `ClusterEngineError` if another controller holds the lock for seconds."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        for _ in range(LOCK_ATTEMPTS):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(LOCK_PAUSE_S)
        else:
            raise ClusterEngineError(f"another controller changes the nodes in {directory}; trying again")
        yield
    finally:
        os.close(lock)


def new_node_name(directory: Path, pool: str) -> str:
    """Return POOL-NUMBER. Numbers are never used twice, so a lost node keeps its name.

    The caller has locked the directory, which all engines of a system share for this.
    """
    path = directory / "names.json"
    try:
        last = dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        last = {}
    named = re.compile(re.escape(pool) + r"-(\d+)")
    found = (named.fullmatch(path.name) for path in directory.iterdir())
    highest = max((int(each[1]) for each in found if each is not None), default=0)
    last[pool] = number = max(int(last.get(pool, 0)), highest) + 1
    replace_file(path, json.dumps(last) + "\n")
    return f"{pool}-{number}"
