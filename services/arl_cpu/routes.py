"""The manager contract as the scheduler speaks it."""

from arl_cpu.live import AttemptStreams
from arl_cpu.manager import CpuManager
from arl_kit.hops import InternalApi
from arl_wire.internal import (
    GrantBatchRequest,
    ReadOutputRequest,
    ResizeBatchRequest,
    ResizeBatchResponse,
    WriteInputRequest,
)

__all__ = ["add_manager_routes", "add_stream_routes"]


def add_manager_routes(api: InternalApi, manager: CpuManager) -> None:
    async def grants(batch: GrantBatchRequest) -> None:
        """A faster copy of granted rows; the manager's poll finds them too."""
        await manager.accept_grants(batch.grants, epoch=batch.node_epoch)

    async def resizes(batch: ResizeBatchRequest) -> ResizeBatchResponse:
        """Answered when they hold: only then may what a shrink frees be given to another."""
        return ResizeBatchResponse(answers=await manager.resize(batch.resizes, epoch=batch.node_epoch))

    api.add_route("/internal/grants", GrantBatchRequest, grants)
    api.add_route("/internal/resizes", ResizeBatchRequest, resizes)


def add_stream_routes(api: InternalApi, streams: AttemptStreams) -> None:
    """What the gateway asks of running attempts, on behalf of who may see them."""
    api.add_route("/internal/output", ReadOutputRequest, streams.poll_output, long_poll=True)
    api.add_route("/internal/input", WriteInputRequest, streams.feed_stdin)
