"""Wait for conditions of other processes, which can only be polled."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

__all__ = ["eventually", "is_running"]


async def eventually(condition: Callable[[], bool | Awaitable[bool]], *, timeout_s: float = 15.0) -> None:
    """Return when the condition is true. Raise TimeoutError if it does not become true in time."""
    async with asyncio.timeout(timeout_s):
        while True:
            holds = condition()
            if holds if isinstance(holds, bool) else await holds:
                return
            await asyncio.sleep(0.01)


def is_running(pid: int) -> bool:
    """Return True if the process runs. A zombie does not run."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"
