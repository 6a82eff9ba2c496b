"""A node whose resources are counters, such as slots of services and calls of endpoints. No attempt outlives it."""

from collections.abc import Iterable, Sequence
from typing import Generic
from uuid import UUID

from arl_core.capacity.ledger import ResourceLedger, fits
from arl_core.domain.model import Fence, Resources
from arl_node.grants import ActiveActionRow, GrantLifecycle, fence_of, grant_of
from arl_node.settlement import ReportT
from arl_wire.internal.node import GrantPayload

__all__ = ["SlotNode"]

_LEDGER_NODE = 0


class SlotNode(Generic[ReportT]):
    """The allocation part of `arl_node.grants.NodeBackend` for such nodes.

    The service implements start, run and settle.
    """

    _grants: GrantLifecycle[ReportT]

    def __init__(self) -> None:
        self._ledger = ResourceLedger()
        self._resources_by_fence: dict[Fence, frozenset[str]] = {}
        """Names of the resources that each attempt has allocated."""

    @property
    def node_id(self) -> int:
        """Return the number of the node in the database."""
        return self._grants.node_id

    @property
    def epoch(self) -> UUID:
        """Return the epoch of this registration."""
        return self._grants.epoch

    @property
    def fenced(self) -> str | None:
        """Return the reason why this node may not start actions, or None."""
        return self._grants.fenced

    async def accept_grants(self, grants: Iterable[GrantPayload], *, epoch: UUID) -> None:
        """Accept copies of granted rows."""
        await self._grants.accept_grants(grants, epoch=epoch)

    @property
    def fences(self) -> frozenset[Fence]:
        """Return the attempts with an allocation."""
        return frozenset(self._resources_by_fence)

    def has(self, fence: Fence) -> bool:
        """Return True if this attempt has an allocation."""
        return fence in self._resources_by_fence

    def allocate(self, grant: GrantPayload) -> bool:
        """Allocate the counters of a grant. Return False if they do not fit."""
        if not fits(grant.amounts, self._ledger.available(_LEDGER_NODE)):
            return False
        self._allocate(grant)
        return True

    def readopt(self, row: ActiveActionRow) -> None:
        """Allocate the counters of a running row, even beyond the capacity."""
        self._allocate(grant_of(row))

    def release(self, fence: Fence) -> None:
        """Release the counters of an attempt. A second call is harmless."""
        self._resources_by_fence.pop(fence, None)
        self._ledger.release(fence)

    def allocated_core_s(self, fence: Fence) -> float:
        """Return 0: the node has no cores."""
        return 0.0

    def on_settled(self, report: ReportT) -> None:
        """Do nothing: an attempt allocates only counters."""

    async def acknowledge(self, fences: Sequence[Fence]) -> None:
        """Do nothing: only this process stores reports."""

    def set_capacity(self, capacity: Resources) -> None:
        """Set the capacity from now on."""
        self._ledger.set_capacity(_LEDGER_NODE, capacity)

    @property
    def capacity(self) -> Resources:
        """Return the total amounts of the node."""
        return self._ledger.capacity(_LEDGER_NODE)

    def _allocate(self, grant: GrantPayload) -> None:
        fence = fence_of(grant)
        self._resources_by_fence[fence] = frozenset(grant.amounts)
        self._ledger.allocate(fence, _LEDGER_NODE, grant.amounts)
