"""Reward services that operators register, and requested changes. GPU managers read them in their polls."""

import asyncio
from collections.abc import Sequence

from arl_admission import reward_service_queries
from arl_admission.checks.fleet import FleetCatalog
from arl_store.tx import PostgresStore
from arl_wire.internal.admission import AdmitItem, AffectedRowsResponse
from arl_wire.internal.reward_services import (
    InternalRegisterServiceRequest,
    RemoveServiceRequest,
    RemoveServiceResponse,
    ServiceOperationRequest,
)

__all__ = ["RewardServiceRegistry"]


class RewardServiceRegistry:
    """The registry of reward services.

    Inserts of actions take `insert_lock`, so none names a service during its removal.
    """

    def __init__(self, store: PostgresStore, fleet: FleetCatalog, *, insert_lock: asyncio.Lock) -> None:
        self._store, self._fleet, self._insert_lock = store, fleet, insert_lock

    async def register(self, request: InternalRegisterServiceRequest) -> AffectedRowsResponse:
        """Register a service. Nodes with its files offer it from their next poll; its actions wait for such a node."""
        async with self._store.write() as tx:
            count = await reward_service_queries.register_service(tx, request.service)
        self._fleet.read_at = float("-inf")
        return AffectedRowsResponse(count=count)

    async def change(self, request: ServiceOperationRequest) -> AffectedRowsResponse:
        """Change the requested operation of a service. The count is 0 if it does not exist."""
        async with self._store.write() as tx:
            count = await reward_service_queries.change_service(tx, request)
        return AffectedRowsResponse(count=count)

    async def remove(self, request: RemoveServiceRequest) -> RemoveServiceResponse:
        """Remove a service.

        Refused while actions wait for it or are scored by it, so that each of them gets an outcome.
        """
        async with self._insert_lock:
            async with self._store.write() as tx:
                removed, unsettled = await reward_service_queries.remove_service(tx, request.name)
            if removed:
                self._fleet.forget_service(request.name)
        return RemoveServiceResponse(removed=bool(removed), unsettled=unsettled)

    def removal_refusals(self, items: Sequence[AdmitItem]) -> dict[int, Exception]:
        """Return errors of scores whose service was removed after their first check: nothing would ever settle them."""
        refusals = {at: self._fleet.refusal(each) for at, each in enumerate(items) if each.action.kind == "score"}
        return {at: refusal for at, refusal in refusals.items() if refusal is not None}
