"""What runs far longer than others like it, by the scheduler; which of it is the caller's, by rows."""

from arl_gateway import straggler_rows
from arl_gateway.auth import Caller
from arl_kit.peers import Peers
from arl_store.tx import Store
from arl_wire.internal import StragglersAnswer, StragglersAsk
from arl_wire.stragglers import Straggler, StragglerList

__all__ = ["Stragglers"]

LOOKED_AT = 1000


class Stragglers:
    def __init__(self, store: Store, peers: Peers, *, scheduler_url: str) -> None:
        self._store = store
        self._peers = peers
        self._scheduler_url = scheduler_url

    async def list(self, caller: Caller) -> StragglerList:
        content = await self._peers.call(f"{self._scheduler_url}/internal/stragglers", StragglersAsk(limit=LOOKED_AT))
        found = StragglersAnswer.model_validate_json(content).stragglers
        if not found:
            return StragglerList(items=[])
        async with self._store.read() as tx:
            rows = await straggler_rows.names_of(tx, [each.id for each in found], project_id=caller.project_id)
        ours = [(each, rows[each.id]) for each in found if each.id in rows]
        return StragglerList(
            items=[
                Straggler(task=row.task, trajectory=row.trajectory, node=row.node, **each.model_dump())
                for each, row in ours
            ]
        )
