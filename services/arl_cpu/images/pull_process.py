"""The processes that pull and remove images. They never outlive the manager."""

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Collection
from dataclasses import asdict
from pathlib import Path

from arl_core.images.pull_planning import ImageFailure
from arl_cpu.images.pull_messages import PullEvent, PullFailure, PullRequest, decode_event
from arl_kit.child_process import child_environment

__all__ = ["PullProcess", "remove_from_store"]

_PR_SET_PDEATHSIG = 1
_MAX_LINE_BYTES = 1 << 20
"""Largest event: an image of 200 layers has 20 KiB."""
_COMMAND = (sys.executable, "-P", "-m", "arl_cpu.images")
_NICENESS = 5
_libc = ctypes.CDLL(None)


class PullProcess:
    """One pull. Iterate over `events`, and call `proceed` after `ImageResolved`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, request: PullRequest) -> "PullProcess":
        """Start the process and send the request."""
        process = await _spawn("pull")
        started = cls(process)
        await started._send(json.dumps(asdict(request)))
        return started

    async def proceed(self) -> None:
        """Let the process download the missing layers."""
        await self._send("proceed")

    async def events(self) -> AsyncIterator[PullEvent]:
        """Yield the events. If the process ends without a result, the last one is a failure."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            yield decode_event(line)
        code = await self._process.wait()
        if code != 0:
            message = f"the process that pulls ended with code {code}"
            yield PullFailure(reason=ImageFailure.INTERRUPTED, message=message)

    async def close(self) -> None:
        """Kill the process if it runs, and wait for its end."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(f"{line}\n".encode())
            await self._process.stdin.drain()


async def remove_from_store(directory: Path, names: Collection[str]) -> list[str]:
    """Remove images that no environment uses. Return the names of the removed ones."""
    process = await _spawn("remove", str(directory), *sorted(names))
    output, _ = await process.communicate()
    return [] if process.returncode else list(json.loads(output))


async def _spawn(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *_COMMAND,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=child_environment(os.environ, network=True),
        limit=_MAX_LINE_BYTES,
        start_new_session=True,
        preexec_fn=_end_with_parent,
    )


def _end_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.nice(_NICENESS)
