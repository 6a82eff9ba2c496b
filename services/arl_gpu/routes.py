"""The internal API that the scheduler calls."""

from arl_gpu.node.manager import GpuManager
from arl_kit.internal_api import InternalApi
from arl_wire.internal.node import GrantBatchRequest

__all__ = ["add_internal_routes"]


def add_internal_routes(hops: InternalApi, manager: GpuManager) -> None:
    """Add the route on which the scheduler notifies this node of grants."""

    async def grants(batch: GrantBatchRequest) -> None:
        """Accept new grants. The request is a fast copy of granted rows; the manager also finds them by polling."""
        await manager.accept_grants(batch.grants, epoch=batch.node_epoch)

    hops.add_route("/internal/grants", GrantBatchRequest, grants)
