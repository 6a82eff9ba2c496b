"""The manager contract as the scheduler speaks it."""

from arl_api.manager import Manager
from arl_kit.hops import Hops
from arl_wire.internal import GrantBatch

__all__ = ["add_hops"]


def add_hops(hops: Hops, manager: Manager) -> None:
    async def grants(batch: GrantBatch) -> None:
        """A faster copy of granted rows; the manager's poll finds them too."""
        await manager.offer(batch.grants, epoch=batch.node_epoch)

    hops.add("/internal/grants", GrantBatch, grants)
