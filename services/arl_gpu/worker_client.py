"""The manager's end of a worker: started with the first order, started anew after it died."""

import asyncio
import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from arl_gpu.messages import read, write
from arl_gpu.worker import Config
from arl_store.child import spawn

__all__ = ["Worker", "WorkerDied"]

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
PASSED_ON = ("PATH", "HOME", "LANG", "TZ")
STDERR = 2

log = logging.getLogger(__name__)


class WorkerDied(Exception):
    """It ended, or was ended, before it answered."""


@dataclass(frozen=True, slots=True)
class _Process:
    child: "subprocess.Popen[bytes]"
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Worker:
    """One order at a time."""

    def __init__(self, config: Config, *, threads: int, limit_s: float) -> None:
        self._config, self._threads, self._limit_s = config, threads, limit_s
        self._process: _Process | None = None

    @property
    def pid(self) -> int | None:
        """None before the first order, and after its end."""
        return self._process.child.pid if self._process is not None else None

    async def score(self, service: str, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """What the worker answers. Raises `WorkerDied`; the next call starts another."""
        process = self._process or await self._start()
        try:
            async with asyncio.timeout(self._limit_s):
                await write(process.writer, {"service": service, "pairs": list(pairs)})
                return await read(process.reader)
        except TimeoutError:
            await self.end()
            raise WorkerDied(f"it did not answer within {self._limit_s:g} s") from None
        except OSError:
            raise WorkerDied(f"it ended with {await self.end()}") from None
        except asyncio.CancelledError:
            # Its answer would be taken for that of the next order.
            await self.end()
            raise

    async def end(self) -> int | None:
        """Its exit code, or minus the signal that ended it."""
        process, self._process = self._process, None
        if process is None:
            return None
        process.writer.close()
        with contextlib.suppress(OSError):
            await process.writer.wait_closed()
        process.child.kill()
        return await asyncio.to_thread(process.child.wait)

    async def _start(self) -> _Process:
        ours, its = socket.socketpair()
        with its:
            argv = (sys.executable, "-P", "-m", "arl_gpu.worker", str(its.fileno()), json.dumps(asdict(self._config)))
            env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
            env |= dict.fromkeys(THREADS, str(self._threads))
            child = spawn(argv, env=env, output=STDERR, pass_fds=(its.fileno(),))
        reader, writer = await asyncio.open_connection(sock=ours)
        self._process = _Process(child, reader, writer)
        log.info("worker %d started", child.pid)
        return self._process
