"""Nodes as rounds see them."""

from collections.abc import Mapping
from dataclasses import replace

from arl_core.capacity.ledger import ResourceLedger
from arl_core.domain.model import NodeResources
from arl_scheduler.index.environments import EnvironmentsPerNode
from arl_scheduler.queries.poll_result import NodeRow, to_node_resources

__all__ = ["NodeTable"]

ENDING_INTERVAL_S = 1.0
"""Seconds for which the time that a node has left may be outdated. The grace before its end covers it."""


class NodeTable:
    """A cached table of nodes, rebuilt after nodes were read or have changed.

    Available resources are views of the ledger and change with it until other capacities are set. Nodes with rate
    limits are rebuilt each time, because their available tokens change with time. Nodes with a known end are rebuilt
    once a second, because the time until it decreases.
    """

    def __init__(self, ledger: ResourceLedger, environment_counts: EnvironmentsPerNode) -> None:
        self._ledger = ledger
        self._environment_counts = environment_counts
        self._rows: Mapping[int, NodeRow] = {}
        self._watching_since = 0.0
        self._alive: set[int] = set()
        self._oldest_heartbeat = float("inf")
        """Earliest heartbeat of the live nodes.

        A dead node stays dead until nodes are read again or watching restarts.
        """
        self._nodes: dict[int, NodeResources] = {}
        self._rate_limited: list[NodeRow] = []
        self._ending: list[NodeRow] = []
        """Nodes with a known end."""
        self._ending_built_at = float("-inf")

    def current(
        self, rows: Mapping[int, NodeRow], *, now: float, silent_after_s: float, watching_since: float
    ) -> Mapping[int, NodeResources]:
        """Return the nodes by id. A node is alive if its heartbeat, or the start of watching, is recent enough."""
        changed = self._environment_counts.take_changed()
        is_same = rows is self._rows and watching_since == self._watching_since
        if not is_same or now - self._oldest_heartbeat > silent_after_s:
            self._rows, self._watching_since = rows, watching_since
            signs = {id: max(watching_since, node.last_heartbeat) for id, node in rows.items()}
            self._alive = {id for id, sign in signs.items() if now - sign <= silent_after_s}
            self._oldest_heartbeat = min((signs[id] for id in self._alive), default=float("inf"))
            self._nodes = {id: self._build_node(node, now) for id, node in rows.items()}
            self._ending = [node for node in rows.values() if node.ends_at is not None]
            self._ending_built_at = now
            self._rate_limited = [node for node in rows.values() if node.rate_limits]
        elif changed:
            self._nodes = self._nodes | {id: self._build_node(rows[id], now) for id in changed if id in rows}
        if self._rate_limited:
            self._nodes = self._nodes | {node.id: self._build_node(node, now) for node in self._rate_limited}
        if self._ending and now - self._ending_built_at > ENDING_INTERVAL_S:
            self._nodes = self._nodes | {node.id: self._build_node(node, now) for node in self._ending}
            self._ending_built_at = now
        return self._nodes

    @property
    def rate_limited(self) -> list[NodeResources]:
        """Return the nodes with rate limits, as of the last call of `current`."""
        return [self._nodes[node.id] for node in self._rate_limited]

    def _build_node(self, row: NodeRow, now: float) -> NodeResources:
        homes, alive = self._environment_counts.count_on(row.id), row.id in self._alive
        if row.rate_limits:
            row = replace(row, capacity=self._ledger.capacity(row.id))
        return to_node_resources(
            row, available=self._ledger.available_view(row.id), is_alive=alive, environment_count=homes, now=now
        )
