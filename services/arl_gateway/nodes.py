"""Nodes shown, closed, emptied, opened and removed. Admission is the writer of those wishes."""

from arl_gateway import node_rows, repository
from arl_gateway.auth import Caller
from arl_gateway.keys import ROOT_PROJECT
from arl_gateway.views import node_of
from arl_kit.peers import Peers
from arl_store.tx import Store, WriteTx
from arl_wire.errors import Conflict, Forbidden, NotFound
from arl_wire.internal import WishAnswer
from arl_wire.node_wishes import ChangeNodeWish, RemoveNodeAnswer, RemoveNodeWish
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
        _must_administer(caller)
        wish = ChangeNodeWish(name=name, cordoned=wanted.cordoned, drain_deadline_s=wanted.drain_deadline_s)
        content = await self._peers.call(f"{self._admission_url}/internal/change-node", wish)
        if WishAnswer.model_validate_json(content).count == 0:
            raise NotFound(f"there is no node {name!r}")
        async with self._store.write() as tx:
            await _note(tx, caller, "node.change", name, wanted.model_dump_json(exclude_unset=True))
            row = await node_rows.node_named(tx, name)
        if row is None:
            raise NotFound(f"there is no node {name!r} any more")
        return node_of(row)

    async def remove(self, name: str, caller: Caller) -> None:
        """Raises `Conflict` while it lives or has something, and `NotFound`."""
        _must_administer(caller)
        content = await self._peers.call(f"{self._admission_url}/internal/remove-node", RemoveNodeWish(name=name))
        answer = RemoveNodeAnswer.model_validate_json(content)
        if answer.kept_by is not None:
            raise Conflict(f"the node {name!r} is not removed: {answer.kept_by}; drain it and stop it first")
        if not answer.removed:
            raise NotFound(f"there is no node {name!r}")
        async with self._store.write() as tx:
            await _note(tx, caller, "node.remove", name, "{}")


def _must_administer(caller: Caller) -> None:
    """Nodes serve all projects, so only keys of the first one have a say in them."""
    if caller.project != ROOT_PROJECT:
        raise Forbidden(f"nodes are changed with a key of the project `{ROOT_PROJECT}`")


async def _note(tx: WriteTx, caller: Caller, verb: str, name: str, detail: str) -> None:
    await repository.insert_audit(
        tx, project_id=caller.project_id, api_key_id=caller.key_id, verb=verb, target=f"node:{name}", detail=detail
    )
