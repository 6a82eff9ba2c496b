"""Operations on nodes: cordon, drain, uncordon, remove, and requests for images."""

from collections.abc import Callable

from arl_admission import image_queries, node_queries
from arl_admission.checks.fleet import FleetCatalog
from arl_store.tx import PostgresStore
from arl_wire.internal.admission import (
    AffectedRowsResponse,
    InternalChangeNodeRequest,
    RemoveNodeRequest,
    RemoveNodeResponse,
    RequestImagesRequest,
)

__all__ = ["NodeOperations"]


class NodeOperations:
    """The operations on nodes. `notify` sends the number of changed rows to the scheduler."""

    def __init__(self, store: PostgresStore, fleet: FleetCatalog, *, notify: Callable[[int], None]) -> None:
        self._store, self._fleet, self._notify = store, fleet, notify

    async def change(self, request: InternalChangeNodeRequest) -> AffectedRowsResponse:
        """Cordon, drain or reopen a node. The count is 0 if it does not exist."""
        async with self._store.write() as tx:
            count = await node_queries.change_node(tx, request)
        self._notify(count)
        return AffectedRowsResponse(count=count)

    async def remove(self, request: RemoveNodeRequest) -> RemoveNodeResponse:
        """Remove a node. Refused while it is alive or has actions or environments. If it returns, it is a new node."""
        try:
            async with self._store.write() as tx:
                kept_by = await node_queries.remove_node(tx, request.name)
        except LookupError:
            return RemoveNodeResponse(removed=False)
        if kept_by is None:
            self._fleet.read_at = float("-inf")
            self._notify(1)
        return RemoveNodeResponse(removed=kept_by is None, kept_by=kept_by)

    async def request_images(self, request: RequestImagesRequest) -> AffectedRowsResponse:
        """Request pulls on nodes, or removals from all nodes. Nodes read the requests by their next poll."""
        async with self._store.write() as tx:
            if request.nodes is None:
                count = await image_queries.request_removals(tx, request.images)
            else:
                count = await image_queries.request_pulls(tx, request.images, request.nodes)
        self._notify(count)
        return AffectedRowsResponse(count=count)
