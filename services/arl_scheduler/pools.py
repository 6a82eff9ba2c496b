"""The nodes as rounds see them."""

from collections.abc import Mapping

from arl_core.ledger import Ledger
from arl_core.model import Pool
from arl_scheduler.homes import HomesByNode
from arl_scheduler.rows import NodeRow, pool_of

__all__ = ["Pools"]


class Pools:
    """Made anew once other nodes are read, and where something has changed since.

    What is free is the ledger's own and moves on with it, until other capacities are set.
    """

    def __init__(self, ledger: Ledger, living: HomesByNode) -> None:
        self._ledger = ledger
        self._living = living
        self._nodes: Mapping[int, NodeRow] = {}
        self._oldest_sign = 0.0
        self._all_alive = False
        self._pools: dict[int, Pool] = {}

    def of(
        self, nodes: Mapping[int, NodeRow], *, now: float, silent_after_s: float, watching_since: float
    ) -> Mapping[int, Pool]:
        """By node. Alive is who gave a sign, or has not been watched, so long ago at most."""
        if nodes is not self._nodes:
            self._nodes, self._all_alive = nodes, False
            self._oldest_sign = min((node.last_sign for node in nodes.values()), default=now)
        changed = self._living.changed()
        all_alive = now - max(watching_since, self._oldest_sign) <= silent_after_s
        if not (all_alive and self._all_alive):
            alive = {id: now - max(watching_since, node.last_sign) <= silent_after_s for id, node in nodes.items()}
            self._pools = {id: self._pool(node, alive=alive[id]) for id, node in nodes.items()}
        elif changed:
            self._pools = self._pools | {id: self._pool(nodes[id], alive=True) for id in changed if id in nodes}
        self._all_alive = all_alive
        return self._pools

    def _pool(self, node: NodeRow, *, alive: bool) -> Pool:
        return pool_of(node, free=self._ledger.left(node.id), alive=alive, homes=self._living.on(node.id))
