"""Nodes shown, closed, emptied and opened. Admission is the writer of those wishes."""

from arl_gateway import node_rows, repository
from arl_gateway.auth import Caller
from arl_gateway.keys import ROOT_PROJECT
from arl_gateway.views import node_of
from arl_kit.peers import Peers
from arl_store.tx import Store
from arl_wire.errors import Forbidden, NotFound
from arl_wire.internal import ChangeNodeWish, WishAnswer
from arl_wire.nodes import ChangeNode, Node, NodeList

__all__ = ["NodeAdmin"]


class NodeAdmin:
    def __init__(self, store: Store, peers: Peers, *, admission_url: str) -> None:
        self._store = store
        self._peers = peers
        self._admission_url = admission_url

    async def list(self) -> NodeList:
        async with self._store.read() as tx:
            rows = await node_rows.list_nodes(tx)
        return NodeList(items=[node_of(row) for row in rows])

    async def change(self, name: str, wanted: ChangeNode, caller: Caller) -> Node:
        """Nodes serve all projects, so only keys of the first one have a say in them."""
        if caller.project != ROOT_PROJECT:
            raise Forbidden(f"nodes are changed with a key of the project `{ROOT_PROJECT}`")
        wish = ChangeNodeWish(name=name, cordoned=wanted.cordoned, drain_deadline_s=wanted.drain_deadline_s)
        content = await self._peers.call(f"{self._admission_url}/internal/change-node", wish)
        if WishAnswer.model_validate_json(content).count == 0:
            raise NotFound(f"there is no node {name!r}")
        async with self._store.write() as tx:
            await repository.insert_audit(
                tx,
                project_id=caller.project_id,
                api_key_id=caller.key_id,
                verb="node.change",
                target=f"node:{name}",
                detail=wanted.model_dump_json(exclude_unset=True),
            )
            row = await node_rows.node_named(tx, name)
        if row is None:
            raise NotFound(f"there is no node {name!r} any more")
        return node_of(row)
