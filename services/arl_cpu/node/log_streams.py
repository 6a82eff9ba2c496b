"""Output and input of attempts while they run: questions that are passed on, and given up when nobody needs them."""

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
"""The longest that a question waits for something new; then it is asked again."""


class AttemptStreams:
    """A fence names one attempt for ever, so nothing of another one can be seen or fed."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._timeouts: set[asyncio.Timeout] = set()

    async def poll_output(self, request: ReadOutputRequest) -> ReadOutputResponse:
        """As soon as there is something beyond the offsets; or that there is nothing new."""
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
            raise Unavailable(f"the launcher is gone: {error}", retry_after_s=1) from error
        finally:
            self._timeouts.discard(hold)

    async def feed_stdin(self, request: WriteInputRequest) -> WriteInputResponse:
        fence = Fence(request.id, request.grant_no)
        try:
            fed = await self._executor.feed_stdin(fence, request.data, offset=request.offset, end=request.end)
        except ConnectionError as error:
            raise Unavailable(f"the launcher is gone: {error}", retry_after_s=1) from error
        return WriteInputResponse(status=fed.status, offset=fed.offset)

    def drain(self) -> None:
        """Questions that wait are answered now: there is nothing new."""
        for hold in self._timeouts:
            hold.reschedule(asyncio.get_running_loop().time())


def _output_response(output: CapturedOutput | None) -> ReadOutputResponse:
    if output is None:
        return ReadOutputResponse(status="absent")
    status = "ended" if output.ended else "running"
    return ReadOutputResponse(status=status, stdout=_wire_chunk(output.stdout), stderr=_wire_chunk(output.stderr))


def _wire_chunk(chunk: Read) -> OutputPortion:
    return OutputPortion(data=chunk.data, kept_bytes=chunk.retained_bytes, total_bytes=chunk.total_bytes)
