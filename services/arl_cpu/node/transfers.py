"""File transfers into and out of environments. The bytes pass through this process and never through rows.

A transfer is an action without cores, so that it is ordered among the actions of its environment. A separate request
names the action and carries the bytes. The grant and the request arrive in any order and wait for each other.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from arl_core.domain.model import Fence
from arl_cpu.contract.environment_access import FileOperation, FileOperationError
from arl_cpu.contract.executor import ExecutionReport, Executor
from arl_wire.errors import Conflict, NotFound, TangramError, TooLarge, Unavailable, ValidationFailed

__all__ = ["FileTransfers", "report_for_error"]

CLAIM_TIMEOUT_S = 15.0
"""Seconds that a granted transfer waits for its request. After that its gateway is assumed dead."""
GRANT_TIMEOUT_S = 50.0
LIMIT_CODES = frozenset({"disk", "memory"})
ERRORS_BY_CODE: Mapping[str, type[TangramError]] = {
    "not_found": NotFound,
    "too_large": TooLarge,
    "invalid": ValidationFailed,
}
"""Exception by error code. Every other code is a conflict with the state or the content of the environment."""


@dataclass(slots=True)
class _PendingTransfer:
    """The transfer of one action. Its request waits for the grant."""

    granted: "asyncio.Future[tuple[Fence, UUID]]"
    is_claimed: bool = False
    is_cancelled: bool = False
    abandon_timer: asyncio.TimerHandle | None = None


class FileTransfers:
    """The pending and open transfers of this node, by action."""

    def __init__(self, executor: Executor, report: Callable[[ExecutionReport], None]) -> None:
        self._executor, self._report = executor, report
        self._transfers: dict[UUID, _PendingTransfer] = {}

    def start(self, fence: Fence, environment: UUID) -> None:
        """Record that the action has been granted."""
        turn = self._get_or_create(fence.action_id)
        if not turn.granted.done():
            turn.granted.set_result((fence, environment))
        if not turn.is_claimed:
            turn.abandon_timer = asyncio.get_running_loop().call_later(CLAIM_TIMEOUT_S, self._abandon, fence)

    def refuse(self, report: ExecutionReport) -> None:
        """Refuse a transfer: its action ends without a grant."""
        turn = self._transfers.get(report.fence.action_id)
        if turn is not None and not turn.granted.done():
            turn.granted.set_exception(Conflict(report.message or report.reason or "the transfer was cancelled"))

    def cancel(self, fences: Iterable[Fence]) -> None:
        """Cancel the transfers of fences that are being killed. An unclaimed one has no worker and ends at once."""
        for fence in fences:
            if (turn := self._transfers.get(fence.action_id)) is not None:
                turn.is_cancelled = True
                if not turn.is_claimed:
                    self._end(ExecutionReport(fence=fence, outcome="cancelled"))

    @asynccontextmanager
    async def open_transfer(self, action: UUID, request: Mapping[str, Any]) -> AsyncIterator[FileOperation]:
        """Open the file operation once the action is granted. The end of the block is the end of the action.

        Raises a TangramError.
        """
        turn = self._get_or_create(action)
        if turn.is_claimed:
            raise Conflict(f"action {action} already has a transfer")
        turn.is_claimed = True
        try:
            fence, environment = await asyncio.wait_for(asyncio.shield(turn.granted), GRANT_TIMEOUT_S)
        except TimeoutError:
            self._transfers.pop(action, None)
            raise Unavailable("the environment is busy with other actions; try again", retry_after_s=5) from None
        except BaseException:
            self._transfers.pop(action, None)
            raise
        if turn.abandon_timer is not None:
            turn.abandon_timer.cancel()
        async with self._settle_on_exit(fence, turn):
            work = await self._executor.start_file_operation(fence, environment, request)
            try:
                yield work
            finally:
                await asyncio.shield(work.close())

    @asynccontextmanager
    async def _settle_on_exit(self, fence: Fence, transfer: _PendingTransfer) -> AsyncIterator[None]:
        began = time.monotonic()
        report = ExecutionReport(fence=fence, outcome="cancelled")
        try:
            yield
            report = ExecutionReport(fence=fence, outcome="ok", exit_code=0)
        except FileOperationError as refused:
            report = report_for_error(fence, refused)
            error = ERRORS_BY_CODE.get(refused.code, Conflict)
            raise error(str(refused)) from None
        except ConnectionError as lost:
            if transfer.is_cancelled:
                raise Conflict("the transfer was cancelled") from None
            report = ExecutionReport(fence=fence, outcome="infra_error", reason="worker_lost", message=str(lost))
            raise Unavailable(f"the transfer was interrupted: {lost}", retry_after_s=1) from None
        finally:
            self._end(replace(report, run_us=int((time.monotonic() - began) * 1_000_000)))

    def _get_or_create(self, action: UUID) -> _PendingTransfer:
        if action not in self._transfers:
            self._transfers[action] = _PendingTransfer(asyncio.get_running_loop().create_future())
        return self._transfers[action]

    def _abandon(self, fence: Fence) -> None:
        message = "no request arrived for the transfer in time"
        self._end(ExecutionReport(fence=fence, outcome="infra_error", reason="transfer_abandoned", message=message))

    def _end(self, report: ExecutionReport) -> None:
        turn = self._transfers.pop(report.fence.action_id, None)
        if turn is not None and turn.abandon_timer is not None:
            turn.abandon_timer.cancel()
        self._report(report)


def report_for_error(fence: Fence, error: FileOperationError) -> ExecutionReport:
    """Return the report of an action whose operation was refused."""
    message = str(error)
    if error.code in LIMIT_CODES:
        return ExecutionReport(fence=fence, outcome="limit_exceeded", reason=error.code, message=message)
    if error.code == "time":
        return ExecutionReport(fence=fence, outcome="user_timeout", message=message)
    if error.code == "lost":
        reason = "environment_lost"
        return ExecutionReport(
            fence=fence, outcome="infra_error", reason=reason, message=message, environment_lost=True
        )
    if error.code in ("busy", "unsupported"):
        return ExecutionReport(fence=fence, outcome="infra_error", reason="setup_failed", message=message)
    return ExecutionReport(fence=fence, outcome="user_error", message=message)
