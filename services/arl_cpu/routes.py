"""The manager contract as the scheduler speaks it."""

from arl_cpu.live import Live
from arl_cpu.manager import Manager
from arl_kit.hops import Hops
from arl_wire.internal import GrantBatch, InputBody, OutputAsk, ResizeBatch, ResizeResponse

__all__ = ["add_hops", "add_live_hops"]


def add_hops(hops: Hops, manager: Manager) -> None:
    async def grants(batch: GrantBatch) -> None:
        """A faster copy of granted rows; the manager's poll finds them too."""
        await manager.offer(batch.grants, epoch=batch.node_epoch)

    async def resizes(batch: ResizeBatch) -> ResizeResponse:
        """Answered when they hold: only then may what a shrink frees be given to another."""
        return ResizeResponse(answers=await manager.resize(batch.resizes, epoch=batch.node_epoch))

    hops.add("/internal/grants", GrantBatch, grants)
    hops.add("/internal/resizes", ResizeBatch, resizes)


def add_live_hops(hops: Hops, live: Live) -> None:
    """What the gateway asks of running attempts, on behalf of who may see them."""
    hops.add("/internal/output", OutputAsk, live.output, waits=True)
    hops.add("/internal/input", InputBody, live.input)
