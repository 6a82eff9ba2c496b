"""Live output and input of attempts. Requests are forwarded to the executor and cancelled when the client leaves."""

import asyncio

from arl_core.domain.model import Fence
from arl_cpu.contract.executor import CapturedChunk as Read
from arl_cpu.contract.executor import CapturedOutput, Executor
from arl_wire.errors import Unavailable
from arl_wire.internal.node import (
    OutputPortion,
    ReadOutputRequest,
    ReadOutputResponse,
    WriteInputRequest,
    WriteInputResponse,
)

__all__ = ["AttemptStreams"]

LONG_POLL_S = 10.0
"""Longest time that a request waits for new output, in seconds; the client then repeats it."""


class AttemptStreams:
    """Live streams of attempts. A fence names one attempt permanently, so a request never reaches another attempt."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._timeouts: set[asyncio.Timeout] = set()

    async def poll_output(self, request: ReadOutputRequest) -> ReadOutputResponse:
        """Wait for output beyond the offsets. After `LONG_POLL_S` return a response without output."""
        fence = Fence(request.id, request.grant_no)
        try:
            async with asyncio.timeout(LONG_POLL_S) as hold:
                self._timeouts.add(hold)
                return _output_response(
                    await self._executor.poll_output(fence, stdout=request.stdout, stderr=request.stderr)
                )
        except TimeoutError:
            return ReadOutputResponse(status="running")
        except ConnectionError as error:
            raise Unavailable(f"the launcher is not available: {error}", retry_after_s=1) from error
        finally:
            self._timeouts.discard(hold)

    async def feed_stdin(self, request: WriteInputRequest) -> WriteInputResponse:
        """Append input to a running attempt. Raises `Unavailable` if the launcher is lost."""
        fence = Fence(request.id, request.grant_no)
        try:
            fed = await self._executor.feed_stdin(fence, request.data, offset=request.offset, end=request.end)
        except ConnectionError as error:
            raise Unavailable(f"the launcher is not available: {error}", retry_after_s=1) from error
        return WriteInputResponse(status=fed.status, offset=fed.offset)

    def drain(self) -> None:
        """Answer all waiting requests now, without new output."""
        for hold in self._timeouts:
            hold.reschedule(asyncio.get_running_loop().time())


def _output_response(output: CapturedOutput | None) -> ReadOutputResponse:
    if output is None:
        return ReadOutputResponse(status="absent")
    status = "ended" if output.ended else "running"
    return ReadOutputResponse(status=status, stdout=_wire_chunk(output.stdout), stderr=_wire_chunk(output.stderr))


def _wire_chunk(chunk: Read) -> OutputPortion:
    return OutputPortion(data=chunk.data, kept_bytes=chunk.retained_bytes, total_bytes=chunk.total_bytes)
