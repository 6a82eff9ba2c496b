"""Capacity plans, the backlog and stragglers, computed by the scheduler."""

from arl_gateway.actions import queries
from arl_gateway.http.auth import Caller
from arl_gateway.nodes import queries as node_queries
from arl_kit.service_client import ServiceClient
from arl_store.tx import PostgresStore
from arl_wire.actions.explanations import StragglerInfo, StragglerListResponse
from arl_wire.admin.capacity import BacklogResponse, CapacityPlan, CapacityPlanQuery
from arl_wire.errors import FieldError, ValidationFailed
from arl_wire.internal.scheduler import (
    BacklogRequest,
    CapacityPlanRequest,
    FindStragglersRequest,
    FindStragglersResponse,
)

__all__ = ["CapacityService", "StragglerService"]


class CapacityService:
    """Capacity plans and the backlog, computed by the scheduler that leads."""

    def __init__(self, store: PostgresStore, peers: ServiceClient, *, scheduler_url: str) -> None:
        self._store = store
        self._peers = peers
        self._scheduler_url = scheduler_url

    async def plan(self, question: CapacityPlanQuery) -> CapacityPlan:
        """Estimate queueing delays. The numbers include the queued actions of all projects, which share the nodes."""
        ask = CapacityPlanRequest(question=question, without=await self._node_ids(question.exclude_node))
        content = await self._peers.call(f"{self._scheduler_url}/internal/plan", ask, audience="scheduler")
        return CapacityPlan.model_validate_json(content)

    async def backlog(self) -> BacklogResponse:
        """Return the backlog by kind of node. Raises `Unavailable` while no scheduler leads."""
        content = await self._peers.call(
            f"{self._scheduler_url}/internal/backlog", BacklogRequest(), audience="scheduler"
        )
        return BacklogResponse.model_validate_json(content)

    async def _node_ids(self, names: list[str]) -> list[int]:
        if not names:
            return []
        async with self._store.read() as tx:
            ids = await node_queries.node_ids(tx, names)
        if unknown := sorted(set(names) - ids.keys()):
            message = f"node {unknown[0]!r} does not exist. `tangram nodes list` shows the nodes"
            raise ValidationFailed(message, errors=[FieldError(field="query.exclude_node", message=message)])
        return list(ids.values())


MAX_STRAGGLERS = 1000


class StragglerService:
    """Stragglers, found by the scheduler that leads."""

    def __init__(self, store: PostgresStore, peers: ServiceClient, *, scheduler_url: str) -> None:
        self._store = store
        self._peers = peers
        self._scheduler_url = scheduler_url

    async def list(self, caller: Caller) -> StragglerListResponse:
        """List the stragglers of the caller's project. Raises `Unavailable` while no scheduler leads."""
        content = await self._peers.call(
            f"{self._scheduler_url}/internal/stragglers",
            FindStragglersRequest(limit=MAX_STRAGGLERS),
            audience="scheduler",
        )
        found = FindStragglersResponse.model_validate_json(content).stragglers
        if not found:
            return StragglerListResponse(items=[])
        async with self._store.read() as tx:
            rows = await queries.running_actions(tx, [each.id for each in found], project_id=caller.project_id)
        ours = [(each, rows[each.id]) for each in found if each.id in rows]
        return StragglerListResponse(
            items=[
                StragglerInfo(task=row.task, trajectory=row.trajectory, node=row.node, **each.model_dump())
                for each, row in ours
            ]
        )
