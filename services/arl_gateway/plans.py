"""What would be with other nodes or more actions, by the scheduler."""

from arl_gateway import node_rows
from arl_kit.peers import ServiceClient
from arl_store.tx import PostgresStore
from arl_wire.errors import FieldError, ValidationFailed
from arl_wire.internal import CapacityPlanRequest
from arl_wire.plans import CapacityPlan, CapacityPlanQuery

__all__ = ["CapacityService"]


class CapacityService:
    def __init__(self, store: PostgresStore, peers: ServiceClient, *, scheduler_url: str) -> None:
        self._store = store
        self._peers = peers
        self._scheduler_url = scheduler_url

    async def plan(self, question: CapacityPlanQuery) -> CapacityPlan:
        """Nodes serve all projects, so what waits of all is in it, as numbers."""
        ask = CapacityPlanRequest(question=question, without=await self._node_ids(question.without))
        content = await self._peers.call(f"{self._scheduler_url}/internal/plan", ask)
        return CapacityPlan.model_validate_json(content)

    async def _node_ids(self, names: list[str]) -> list[int]:
        if not names:
            return []
        async with self._store.read() as tx:
            ids = await node_rows.node_ids(tx, names)
        if unknown := sorted(set(names) - ids.keys()):
            message = f"there is no node {unknown[0]!r}; `tangram nodes list` shows them"
            raise ValidationFailed(message, errors=[FieldError(field="query.without", message=message)])
        return list(ids.values())
