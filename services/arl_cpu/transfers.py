"""File trees on their way into environments and out of them, through this process and never through rows.

A transfer is an action without cores, so that it has its turn among the actions of its environment. Its bytes come by a
request of their own, which names the action; whichever of the two is here first waits for the other.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from arl_core.fence import Fence
from arl_cpu.executor import Executor, Report, Work, WorkRefused
from arl_wire.errors import Conflict, NotFound, TangramError, TooLarge, Unavailable, ValidationFailed

__all__ = ["Transfers", "report_of"]

COMES_WITHIN_S = 15.0
"""A transfer that has its turn and of whose bytes nobody knows: its gateway has died."""
TURN_WITHIN_S = 50.0
LIMITS = frozenset({"disk", "memory"})
REFUSED: Mapping[str, type[TangramError]] = {
    "not_found": NotFound,
    "too_large": TooLarge,
    "invalid": ValidationFailed,
}
"""Everything else is a conflict with what the environment is or holds."""


@dataclass(slots=True)
class _Turn:
    """An action's; the request waits for its fence."""

    granted: "asyncio.Future[tuple[Fence, UUID]]"
    is_claimed: bool = False
    is_cancelled: bool = False
    abandoned: asyncio.TimerHandle | None = None


class Transfers:
    def __init__(self, executor: Executor, report: Callable[[Report], None]) -> None:
        self._executor, self._report = executor, report
        self._turns: dict[UUID, _Turn] = {}

    def start(self, fence: Fence, environment: UUID) -> None:
        """The action runs from now on."""
        turn = self._turn(fence.action_id)
        if not turn.granted.done():
            turn.granted.set_result((fence, environment))
        if not turn.is_claimed:
            turn.abandoned = asyncio.get_running_loop().call_later(COMES_WITHIN_S, self._abandon, fence)

    def miss(self, refused: Report) -> None:
        """The action ends without a turn."""
        turn = self._turns.get(refused.fence.action_id)
        if turn is not None and not turn.granted.done():
            turn.granted.set_exception(Conflict(refused.message or refused.reason or "the transfer was cancelled"))

    def cancel(self, fences: Iterable[Fence]) -> None:
        """They are being killed; one that nobody came for yet has nothing that could be."""
        for fence in fences:
            if (turn := self._turns.get(fence.action_id)) is not None:
                turn.is_cancelled = True
                if not turn.is_claimed:
                    self._end(Report(fence=fence, outcome="cancelled"))

    @asynccontextmanager
    async def begun(self, action: UUID, asked: Mapping[str, Any]) -> AsyncIterator[Work]:
        """In the action's turn. How the block ends is how the action ends. Raises a TangramError."""
        turn = self._turn(action)
        if turn.is_claimed:
            raise Conflict(f"action {action} has its transfer already")
        turn.is_claimed = True
        try:
            fence, environment = await asyncio.wait_for(asyncio.shield(turn.granted), TURN_WITHIN_S)
        except TimeoutError:
            self._turns.pop(action, None)
            raise Unavailable("the environment is busy with other actions; try again", retry_after_s=5) from None
        except BaseException:
            self._turns.pop(action, None)
            raise
        if turn.abandoned is not None:
            turn.abandoned.cancel()
        async with self._reported(fence, turn):
            work = await self._executor.work(fence, environment, asked)
            try:
                yield work
            finally:
                await asyncio.shield(work.close())

    @asynccontextmanager
    async def _reported(self, fence: Fence, turn: _Turn) -> AsyncIterator[None]:
        began = time.monotonic()
        report = Report(fence=fence, outcome="cancelled")
        try:
            yield
            report = Report(fence=fence, outcome="ok", exit_code=0)
        except WorkRefused as refused:
            report = report_of(fence, refused)
            error = REFUSED.get(refused.code, Conflict)
            raise error(str(refused)) from None
        except ConnectionError as lost:
            if turn.is_cancelled:
                raise Conflict("the transfer was cancelled") from None
            report = Report(fence=fence, outcome="infra_error", reason="worker_lost", message=str(lost))
            raise Unavailable(f"the transfer broke off: {lost}", retry_after_s=1) from None
        finally:
            self._end(replace(report, run_us=int((time.monotonic() - began) * 1_000_000)))

    def _turn(self, action: UUID) -> _Turn:
        if action not in self._turns:
            self._turns[action] = _Turn(asyncio.get_running_loop().create_future())
        return self._turns[action]

    def _abandon(self, fence: Fence) -> None:
        message = "nobody came for it within the time there is for that"
        self._end(Report(fence=fence, outcome="infra_error", reason="transfer_abandoned", message=message))

    def _end(self, report: Report) -> None:
        turn = self._turns.pop(report.fence.action_id, None)
        if turn is not None and turn.abandoned is not None:
            turn.abandoned.cancel()
        self._report(report)


def report_of(fence: Fence, refused: WorkRefused) -> Report:
    """How the action ends whose work was refused."""
    message = str(refused)
    if refused.code in LIMITS:
        return Report(fence=fence, outcome="limit_exceeded", reason=refused.code, message=message)
    if refused.code == "time":
        return Report(fence=fence, outcome="user_timeout", message=message)
    if refused.code == "lost":
        reason = "environment_lost"
        return Report(fence=fence, outcome="infra_error", reason=reason, message=message, environment_lost=True)
    if refused.code in ("busy", "unsupported"):
        return Report(fence=fence, outcome="infra_error", reason="setup_failed", message=message)
    return Report(fence=fence, outcome="user_error", message=message)
