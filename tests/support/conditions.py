"""Waiting for what another process does: conditions that can only be asked, not awaited."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

__all__ = ["eventually", "is_running"]


async def eventually(condition: Callable[[], bool | Awaitable[bool]], *, timeout_s: float = 15.0) -> None:
    """Return when the condition holds; TimeoutError when it does not in time."""
    async with asyncio.timeout(timeout_s):
        while True:
            holds = condition()
            if holds if isinstance(holds, bool) else await holds:
                return
            await asyncio.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether the process lives; one that only waits to be reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"
