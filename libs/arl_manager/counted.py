"""A node whose resources only count, slots of services and calls of endpoints, and where nothing outlives it."""

from collections.abc import Iterable, Sequence
from typing import Generic
from uuid import UUID

from arl_core.fence import Fence
from arl_core.ledger import Ledger, fits
from arl_core.model import Amounts
from arl_manager.grants import AnyReport, Grants, HeldRow, fence_of, grant_of
from arl_wire.internal import GrantBody

__all__ = ["CountedNode"]

_NODE = 0


class CountedNode(Generic[AnyReport]):
    """What `arl_manager.grants.Hardware` asks of any such node; how it starts, runs and settles is its service's."""

    _grants: Grants[AnyReport]

    def __init__(self) -> None:
        self._ledger = Ledger()
        self._held: dict[Fence, frozenset[str]] = {}
        """What each holds some of."""

    @property
    def node_id(self) -> int:
        return self._grants.node_id

    @property
    def epoch(self) -> UUID:
        return self._grants.epoch

    @property
    def fenced(self) -> str | None:
        return self._grants.fenced

    async def offer(self, grants: Iterable[GrantBody], *, epoch: UUID) -> None:
        """A copy of granted rows."""
        await self._grants.offer(grants, epoch=epoch)

    @property
    def fences(self) -> frozenset[Fence]:
        return frozenset(self._held)

    def has(self, fence: Fence) -> bool:
        return fence in self._held

    def take(self, grant: GrantBody) -> bool:
        if not fits(grant.amounts, self._ledger.free(_NODE)):
            return False
        self._hold(grant)
        return True

    def readopt(self, row: HeldRow) -> None:
        self._hold(grant_of(row))

    def give_back(self, fence: Fence) -> None:
        self._held.pop(fence, None)
        self._ledger.release(fence)

    def settling(self, report: AnyReport) -> None:
        """What is counted is all that it held."""

    async def acknowledge(self, fences: Sequence[Fence]) -> None:
        """Nobody but this process keeps reports."""

    def set_capacity(self, capacity: Amounts) -> None:
        """From now on."""
        self._ledger.set_capacity(_NODE, capacity)

    @property
    def capacity(self) -> Amounts:
        return self._ledger.capacity(_NODE)

    def _hold(self, grant: GrantBody) -> None:
        fence = fence_of(grant)
        self._held[fence] = frozenset(grant.amounts)
        self._ledger.take(fence, _NODE, grant.amounts)
