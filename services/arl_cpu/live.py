"""Output and input of attempts while they run: questions that are passed on, and given up when nobody needs them."""

import asyncio

from arl_core.fence import Fence
from arl_cpu.executor import Executor, Output
from arl_cpu.executor import Portion as Read
from arl_wire.errors import Unavailable
from arl_wire.internal import InputAnswer, InputBody, OutputAnswer, OutputAsk, Portion

__all__ = ["Live"]

HOLD_S = 10.0
"""The longest that a question waits for something new; then it is asked again."""


class Live:
    """A fence names one attempt for ever, so nothing of another one can be seen or fed."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._holds: set[asyncio.Timeout] = set()

    async def output(self, ask: OutputAsk) -> OutputAnswer:
        """As soon as there is something beyond the offsets; or that there is nothing new."""
        fence = Fence(ask.id, ask.grant_no)
        try:
            async with asyncio.timeout(HOLD_S) as hold:
                self._holds.add(hold)
                return _answer(await self._executor.follow(fence, stdout=ask.stdout, stderr=ask.stderr))
        except TimeoutError:
            return OutputAnswer(status="running")
        except ConnectionError as error:
            raise Unavailable(f"the launcher is gone: {error}", retry_after_s=1) from error
        finally:
            self._holds.discard(hold)

    async def input(self, body: InputBody) -> InputAnswer:
        fence = Fence(body.id, body.grant_no)
        try:
            fed = await self._executor.feed(fence, body.data, offset=body.offset, end=body.end)
        except ConnectionError as error:
            raise Unavailable(f"the launcher is gone: {error}", retry_after_s=1) from error
        return InputAnswer(status=fed.status, offset=fed.offset)

    def drain(self) -> None:
        """Questions that wait are answered now: there is nothing new."""
        for hold in self._holds:
            hold.reschedule(asyncio.get_running_loop().time())


def _answer(output: Output | None) -> OutputAnswer:
    if output is None:
        return OutputAnswer(status="absent")
    status = "ended" if output.ended else "running"
    return OutputAnswer(status=status, stdout=_portion(output.stdout), stderr=_portion(output.stderr))


def _portion(read: Read) -> Portion:
    return Portion(data=read.data, kept_bytes=read.kept_bytes, total_bytes=read.total_bytes)
