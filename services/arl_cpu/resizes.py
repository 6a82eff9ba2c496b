"""Resizes of running actions: nothing is free before the executor confirmed that it is not used any more."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from arl_core.fence import Fence
from arl_cpu.executor import Executor, Resize
from arl_cpu.holdings import Attempt, Change, Holdings
from arl_wire.internal import ResizeAnswer, ResizeBody

__all__ = ["Resizes"]


class Resizes:
    """One batch at a time, its shrinks before its growths. A batch that is broken off frees nothing."""

    def __init__(self, holdings: Holdings, executor: Executor) -> None:
        self._holdings, self._executor = holdings, executor
        self._one_at_a_time = asyncio.Lock()

    async def apply(self, bodies: Sequence[ResizeBody]) -> list[ResizeAnswer]:
        """An answer for each, in their order."""
        async with self._one_at_a_time:
            news = [body for body in bodies if self._is_news(_fence(body), body.amounts_seq)]
            newest = {_fence(body): body for body in sorted(news, key=lambda body: body.amounts_seq)}
            shrinks = [body for fence, body in newest.items() if body.cpu_milli < self._cpu_milli(fence)]
            growths = [body for body in newest.values() if body not in shrinks]
            full = await self._change(shrinks) | await self._change(growths)
            return [self._answer(body, is_full=_fence(body) in full) for body in bodies]

    async def follow(self, rows: Mapping[Fence, Mapping[str, Any]]) -> None:
        """Make true what running rows say and is not so here yet."""
        news = [
            ResizeBody(cpu_milli=row["amounts"]["cpu_milli"], **{k: row[k] for k in ("id", "grant_no", "amounts_seq")})
            for fence, row in rows.items()
            if self._is_news(fence, row["amounts_seq"])
        ]
        if news:
            await self.apply(news)

    def absent(self, body: ResizeBody) -> ResizeAnswer:
        """For another node than this."""
        return ResizeAnswer(
            id=body.id, grant_no=body.grant_no, status="absent", free_cpu_milli=self._holdings.free["cpu_milli"]
        )

    def _is_news(self, fence: Fence, amounts_seq: int) -> bool:
        """Whether it runs here and has not yet what the resize of this number says."""
        attempt = self._running(fence)
        return attempt is not None and amounts_seq > attempt.amounts_seq

    async def _change(self, bodies: Iterable[ResizeBody]) -> set[Fence]:
        """Take, confirm, give back. The fences for which there was not enough to take."""
        begun: list[tuple[Change, int]] = []
        full: set[Fence] = set()
        for body in bodies:
            if (attempt := self._running(_fence(body))) is None:
                continue
            if (change := self._holdings.begin_resize(attempt, body.cpu_milli)) is None:
                full.add(attempt.fence)
            else:
                begun.append((change, body.amounts_seq))
        if begun:
            await self._confirm(begun)
        return full

    async def _confirm(self, begun: Sequence[tuple[Change, int]]) -> None:
        confirmed = await self._executor.resize(
            [
                Resize(fence=change.fence, cpu_milli=change.cpu_milli, cores=change.cores, amounts_seq=amounts_seq)
                for change, amounts_seq in begun
            ]
        )
        for change, amounts_seq in begun:
            if change.fence in confirmed:
                self._holdings.finish_resize(change, amounts_seq=amounts_seq)
            else:
                self._holdings.undo_resize(change)

    def _answer(self, body: ResizeBody, *, is_full: bool) -> ResizeAnswer:
        attempt = self._running(_fence(body))
        is_news = attempt is not None and body.amounts_seq > attempt.amounts_seq
        if attempt is None or (is_news and not is_full):
            return self.absent(body)
        is_done = (body.cpu_milli, body.amounts_seq) == (attempt.cpu_milli, attempt.amounts_seq)
        return ResizeAnswer(
            id=body.id,
            grant_no=body.grant_no,
            status="full" if is_news else "done" if is_done else "stale",
            cpu_milli=attempt.cpu_milli,
            amounts_seq=attempt.amounts_seq,
            free_cpu_milli=self._holdings.free["cpu_milli"],
        )

    def _running(self, fence: Fence) -> Attempt | None:
        """Handed to the executor, and not known to have ended."""
        return self._holdings.attempt(fence) if self._holdings.has_cores(fence) else None

    def _cpu_milli(self, fence: Fence) -> int:
        attempt = self._running(fence)
        return attempt.cpu_milli if attempt is not None else 0


def _fence(body: ResizeBody) -> Fence:
    return Fence(body.id, body.grant_no)
