"""Resizes of running actions. Resources become free only after the executor has confirmed the resize."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from arl_core.domain.model import Fence
from arl_cpu.contract.executor import AttemptResize, Executor
from arl_cpu.node.allocations import AttemptAllocation, NodeAllocations, PendingResize
from arl_wire.internal.node import ResizePayload, ResizeResult

__all__ = ["AttemptResizer"]


class AttemptResizer:
    """A sequential processor of resize batches; shrinks precede growths. An interrupted batch frees nothing."""

    def __init__(
        self,
        allocations: NodeAllocations,
        executor: Executor,
        apply_shared_cores: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Create it. `apply_shared_cores` is called after each change of assigned cores."""
        self._allocations, self._executor = allocations, executor
        self._apply_shared_cores = apply_shared_cores
        self._lock = asyncio.Lock()

    async def apply(self, requests: Sequence[ResizePayload]) -> list[ResizeResult]:
        """Apply the resizes and return one result for each, in the same order."""
        async with self._lock:
            news = [body for body in requests if self._is_newer(_fence_of(body), body.amounts_seq)]
            newest = {_fence_of(body): body for body in sorted(news, key=lambda body: body.amounts_seq)}
            shrinks = [body for fence, body in newest.items() if body.cpu_milli < self._cpu_milli(fence)]
            growths = [body for body in newest.values() if body not in shrinks]
            full = await self._resize_all(shrinks) | await self._resize_all(growths)
            return [self._response(body, is_full=_fence_of(body) in full) for body in requests]

    async def apply_rows(self, rows: Mapping[Fence, Mapping[str, Any]]) -> None:
        """Apply resizes that the rows of running actions contain and that are not applied yet."""
        news = [
            ResizePayload(
                cpu_milli=row["amounts"]["cpu_milli"], **{k: row[k] for k in ("id", "grant_no", "amounts_seq")}
            )
            for fence, row in rows.items()
            if self._is_newer(fence, row["amounts_seq"])
        ]
        if news:
            await self.apply(news)

    def absent_response(self, request: ResizePayload) -> ResizeResult:
        """Return the result for an attempt that does not run on this node."""
        return ResizeResult(
            id=request.id,
            grant_no=request.grant_no,
            status="absent",
            free_cpu_milli=self._allocations.available["cpu_milli"],
        )

    def _is_newer(self, fence: Fence, resize_seq: int) -> bool:
        """Return True if the attempt runs here and its last resize has a lower sequence number."""
        attempt = self._running_allocation(fence)
        return attempt is not None and resize_seq > attempt.resize_seq

    async def _resize_all(self, requests: Iterable[ResizePayload]) -> set[Fence]:
        """Allocate, confirm, free. Return the fences whose growth did not fit."""
        begun: list[tuple[PendingResize, int]] = []
        full: set[Fence] = set()
        for body in requests:
            if (attempt := self._running_allocation(_fence_of(body))) is None:
                continue
            if (change := self._allocations.begin_resize(attempt, body.cpu_milli)) is None:
                full.add(attempt.fence)
            else:
                begun.append((change, body.amounts_seq))
        if begun:
            await self._confirm(begun)
        return full

    async def _confirm(self, pending: Sequence[tuple[PendingResize, int]]) -> None:
        if self._apply_shared_cores is not None:
            await self._apply_shared_cores()
        confirmed = await self._executor.resize(
            [
                AttemptResize(
                    fence=change.fence, cpu_milli=change.cpu_milli, cores=change.cores, amounts_seq=amounts_seq
                )
                for change, amounts_seq in pending
            ]
        )
        for change, amounts_seq in pending:
            if change.fence in confirmed:
                self._allocations.finish_resize(change, resize_seq=amounts_seq)
            else:
                self._allocations.undo_resize(change)
        if self._apply_shared_cores is not None:
            await self._apply_shared_cores()

    def _response(self, request: ResizePayload, *, is_full: bool) -> ResizeResult:
        attempt = self._running_allocation(_fence_of(request))
        is_news = attempt is not None and request.amounts_seq > attempt.resize_seq
        if attempt is None or (is_news and not is_full):
            return self.absent_response(request)
        is_done = (request.cpu_milli, request.amounts_seq) == (attempt.cpu_milli, attempt.resize_seq)
        return ResizeResult(
            id=request.id,
            grant_no=request.grant_no,
            status="full" if is_news else "done" if is_done else "stale",
            cpu_milli=attempt.cpu_milli,
            amounts_seq=attempt.resize_seq,
            free_cpu_milli=self._allocations.available["cpu_milli"],
        )

    def _running_allocation(self, fence: Fence) -> AttemptAllocation | None:
        """Return the allocation of an attempt that the executor has and that is not known to have ended."""
        return self._allocations.get(fence) if self._allocations.has_cores(fence) else None

    def _cpu_milli(self, fence: Fence) -> int:
        attempt = self._running_allocation(fence)
        return attempt.cpu_milli if attempt is not None else 0


def _fence_of(request: ResizePayload) -> Fence:
    return Fence(request.id, request.grant_no)
