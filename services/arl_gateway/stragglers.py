"""What runs far longer than others like it, by the scheduler; which of it is the caller's, by rows."""

from arl_gateway import straggler_rows
from arl_gateway.auth import Caller
from arl_kit.peers import ServiceClient
from arl_store.tx import PostgresStore
from arl_wire.internal import FindStragglersRequest, FindStragglersResponse
from arl_wire.stragglers import StragglerInfo, StragglerListResponse

__all__ = ["StragglerService"]

MAX_STRAGGLERS = 1000


class StragglerService:
    def __init__(self, store: PostgresStore, peers: ServiceClient, *, scheduler_url: str) -> None:
        self._store = store
        self._peers = peers
        self._scheduler_url = scheduler_url

    async def list(self, caller: Caller) -> StragglerListResponse:
        content = await self._peers.call(
            f"{self._scheduler_url}/internal/stragglers", FindStragglersRequest(limit=MAX_STRAGGLERS)
        )
        found = FindStragglersResponse.model_validate_json(content).stragglers
        if not found:
            return StragglerListResponse(items=[])
        async with self._store.read() as tx:
            rows = await straggler_rows.running_actions(tx, [each.id for each in found], project_id=caller.project_id)
        ours = [(each, rows[each.id]) for each in found if each.id in rows]
        return StragglerListResponse(
            items=[
                StragglerInfo(task=row.task, trajectory=row.trajectory, node=row.node, **each.model_dump())
                for each, row in ours
            ]
        )
