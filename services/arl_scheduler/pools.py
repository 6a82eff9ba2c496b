"""The nodes as rounds see them."""

from collections.abc import Mapping
from typing import NamedTuple

from arl_core.ledger import Ledger
from arl_core.model import Amounts, Pool
from arl_scheduler.homes import HomesByNode
from arl_scheduler.rows import NodeRow, pool_of

__all__ = ["Pools"]


class _Made(NamedTuple):
    node: NodeRow
    free: Amounts
    alive: bool
    homes: int
    pool: Pool


class Pools:
    """A pool is made anew where something of its node has changed. What is free is the ledger's own, and moves on."""

    def __init__(self, ledger: Ledger, living: HomesByNode) -> None:
        self._ledger = ledger
        self._living = living
        self._made: dict[int, _Made] = {}

    def of(
        self, nodes: Mapping[int, NodeRow], *, now: float, silent_after_s: float, watching_since: float
    ) -> dict[int, Pool]:
        """By node. Alive is who gave a sign, or has not been watched, so long ago at most."""
        if self._made.keys() - nodes.keys():
            self._made = {id: made for id, made in self._made.items() if id in nodes}
        found: dict[int, Pool] = {}
        for id, node in nodes.items():
            sign = max(watching_since, node.last_sign)
            found[id] = self._pool(node, alive=now - sign <= silent_after_s)
        return found

    def _pool(self, node: NodeRow, *, alive: bool) -> Pool:
        free, homes, made = self._ledger.left(node.id), self._living.on(node.id), self._made.get(node.id)
        if made is not None and made.node is node and made.free is free and (made.alive, made.homes) == (alive, homes):
            return made.pool
        pool = pool_of(node, free=free, alive=alive, homes=homes)
        self._made[node.id] = _Made(node, free, alive, homes, pool)
        return pool
