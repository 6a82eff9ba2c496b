"""Reward services, as the rows of the nodes say."""

import json
from collections.abc import Sequence
from itertools import groupby

from arl_gateway.reward_rows import services_of_nodes
from arl_store.tx import Row, Store
from arl_wire.errors import FieldError, NotFound
from arl_wire.services import RewardService, RewardServiceList, ServiceOnNode

__all__ = ["Rewards"]


class Rewards:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def list(self) -> RewardServiceList:
        async with self._store.read() as tx:
            return RewardServiceList(items=_services(await services_of_nodes(tx)))

    async def get(self, name: str) -> RewardService:
        """Raises `NotFound`."""
        async with self._store.read() as tx:
            found = _services(await services_of_nodes(tx, name=name))
        if not found:
            message = f"there is no reward service {name!r}"
            raise NotFound(message, errors=[FieldError(field="name", message=message)])
        return found[0]


def _services(rows: Sequence[Row]) -> list[RewardService]:
    said = [(json.loads(row.said), row) for row in rows]
    return [_service([*nodes]) for _, nodes in groupby(said, key=lambda each: each[0]["name"])]


def _service(nodes: Sequence[tuple[dict[str, object], Row]]) -> RewardService:
    on_nodes = [
        ServiceOnNode.model_validate({**said, "node": row.node, "available": row.available, "in_flight": row.in_flight})
        for said, row in nodes
    ]
    return RewardService.model_validate(
        {**nodes[0][0], "available": any(each.available for each in on_nodes), "nodes": on_nodes}
    )
