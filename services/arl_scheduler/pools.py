"""The nodes as rounds see them."""

from collections.abc import Mapping
from dataclasses import replace

from arl_core.ledger import Ledger
from arl_core.model import Pool
from arl_scheduler.homes import HomesByNode
from arl_scheduler.rows import NodeRow, pool_of

__all__ = ["Pools"]


class Pools:
    """Made anew once other nodes are read, and where something has changed since.

    What is free is the ledger's own and moves on with it, until other capacities are set. Those of nodes with rates are
    made each time: what is free there changes with time.
    """

    def __init__(self, ledger: Ledger, living: HomesByNode) -> None:
        self._ledger = ledger
        self._living = living
        self._nodes: Mapping[int, NodeRow] = {}
        self._watching_since = 0.0
        self._alive: set[int] = set()
        self._oldest_sign = float("inf")
        """Of those that are alive: who is silent stays so until nodes are read, or watched, anew."""
        self._pools: dict[int, Pool] = {}
        self._rated: list[NodeRow] = []

    def of(
        self, nodes: Mapping[int, NodeRow], *, now: float, silent_after_s: float, watching_since: float
    ) -> Mapping[int, Pool]:
        """By node. Alive is who gave a sign, or has not been watched, so long ago at most."""
        changed = self._living.changed()
        is_same = nodes is self._nodes and watching_since == self._watching_since
        if not is_same or now - self._oldest_sign > silent_after_s:
            self._nodes, self._watching_since = nodes, watching_since
            signs = {id: max(watching_since, node.last_sign) for id, node in nodes.items()}
            self._alive = {id for id, sign in signs.items() if now - sign <= silent_after_s}
            self._oldest_sign = min((signs[id] for id in self._alive), default=float("inf"))
            self._pools = {id: self._pool(node) for id, node in nodes.items()}
            self._rated = [node for node in nodes.values() if node.rates]
        elif changed:
            self._pools = self._pools | {id: self._pool(nodes[id]) for id in changed if id in nodes}
        if self._rated:
            self._pools = self._pools | {node.id: self._pool(node) for node in self._rated}
        return self._pools

    @property
    def refilling(self) -> list[Pool]:
        """Of the nodes with rates, as they were last asked for."""
        return [self._pools[node.id] for node in self._rated]

    def _pool(self, node: NodeRow) -> Pool:
        homes, alive = self._living.on(node.id), node.id in self._alive
        if node.rates:
            node = replace(node, capacity=self._ledger.capacity(node.id))
        return pool_of(node, free=self._ledger.left(node.id), alive=alive, homes=homes)
