"""Reports of the backlog of each kind of node, from the leader's index. They do not affect rounds."""

import asyncio

from arl_core.inquiry.backlog import NodeKindLoad, measure_load
from arl_scheduler.leader.scheduling_loop import SchedulingLoop
from arl_wire.admin.capacity import BacklogResponse, NodeKindBacklog
from arl_wire.errors import Unavailable
from arl_wire.internal.scheduler import BacklogRequest

__all__ = ["BacklogReporter"]


class BacklogReporter:
    """Reporter of the backlog. Concurrent requests are answered one after another."""

    def __init__(self, loop: SchedulingLoop) -> None:
        self._loop = loop
        self._lock = asyncio.Lock()

    async def report(self, request: BacklogRequest) -> BacklogResponse:
        """Return the backlog of each kind of node. Raises `Unavailable` if another scheduler leads."""
        async with self._lock:
            await asyncio.sleep(0)  # rounds and other requests run between reports
            view = self._loop.view()
            if view is None:
                raise Unavailable(
                    "this scheduler does not lead, or has just started to lead; try again", retry_after_s=1
                )
            _, snapshot = view
            loads = measure_load(snapshot)
            return BacklogResponse(
                items=[_to_backlog(kind, load, now=snapshot.now) for kind, load in sorted(loads.items())]
            )


def _to_backlog(kind: str, load: NodeKindLoad, *, now: float) -> NodeKindBacklog:
    oldest = load.oldest_submitted
    return NodeKindBacklog(
        kind=kind,
        waiting=load.waiting,
        waiting_cores=load.waiting_milli / 1000,
        waiting_core_s=round(load.waiting_milli_s / 1000, 3),
        unknown_cores=load.unknown_milli / 1000,
        pinned=load.pinned,
        oldest_s=round(max(0.0, now - oldest), 3) if oldest is not None else None,
        running=load.running,
        busy_cores=load.busy_milli / 1000,
    )
