"""Internal routes of the broker, for the scheduler."""

from arl_api.manager import ApiManager
from arl_kit.internal_api import InternalApi
from arl_wire.internal.node import GrantBatchRequest

__all__ = ["add_internal_routes"]


def add_internal_routes(api: InternalApi, manager: ApiManager) -> None:
    """Add the route on which the scheduler notifies this node of grants."""

    async def grants(batch: GrantBatchRequest) -> None:
        """Accept copies of granted rows. The manager's poll finds them too."""
        await manager.accept_grants(batch.grants, epoch=batch.node_epoch)

    api.add_route("/internal/grants", GrantBatchRequest, grants)
