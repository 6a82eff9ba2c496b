"""Test which nodes a round treats as alive, and when node resources are rebuilt."""

from collections.abc import Iterable, Mapping
from uuid import UUID

from arl_core.capacity.ledger import ResourceLedger
from arl_core.domain.model import NodeResources
from arl_scheduler.index.environments import EnvironmentsPerNode, TrackedEnvironment
from arl_scheduler.index.node_table import NodeTable
from arl_scheduler.queries.poll_result import NodeRow
from support.builders import a_node_row

NOW, SILENT_AFTER_S = 1000.0, 10.0


class Watched:
    """The resources of the nodes that were read last."""

    def __init__(self, *nodes: NodeRow) -> None:
        self.living = EnvironmentsPerNode()
        self._pools = NodeTable(ResourceLedger(), self.living)
        self.read(*nodes)

    def read(self, *nodes: NodeRow) -> None:
        self._nodes = {node.id: node for node in nodes}

    def at(self, now: float, *, watching_since: float = 0.0) -> Mapping[int, NodeResources]:
        return self._pools.current(self._nodes, now=now, silent_after_s=SILENT_AFTER_S, watching_since=watching_since)


def alive(pools: Mapping[int, NodeResources]) -> set[int]:
    return {node for node, pool in pools.items() if pool.is_serving}


def made(before: Mapping[int, NodeResources], after: Mapping[int, NodeResources]) -> set[int]:
    return {node for node, pool in after.items() if pool is not before.get(node)}


def nodes(*numbers: int, sign: float = NOW) -> Iterable[NodeRow]:
    return (a_node_row(number, last_heartbeat=sign) for number in numbers)


class TestCurrentNodes:
    def test_silent_node_does_not_rebuild_other_nodes(self) -> None:
        watched = Watched(*nodes(1, 2, 3), *nodes(4, sign=NOW - 60))
        first = watched.at(NOW)
        later = [watched.at(NOW + second) for second in range(1, 11)]
        assert alive(first) == {1, 2, 3}
        assert all(pools is first for pools in later)

    def test_new_environment_rebuilds_its_node_without_reviving_it(self) -> None:
        watched = Watched(*nodes(1, 2), *nodes(3, sign=NOW - 60))
        before = watched.at(NOW)
        for number, node in enumerate((2, 3)):
            watched.living.update(TrackedEnvironment(name=(1, str(node)), id=UUID(int=number), node=node))
        after = watched.at(NOW + 1)
        assert (made(before, after), alive(after)) == ({2, 3}, {1, 2})
        assert [after[node].environments for node in (1, 2, 3)] == [0, 1, 1]

    def test_node_with_an_expired_lease_is_not_serving(self) -> None:
        watched = Watched(*nodes(1), *nodes(2, sign=NOW - 5), *nodes(3, sign=NOW - 60))
        assert alive(watched.at(NOW + 5)) == {1, 2}
        lapsed = watched.at(NOW + 6)
        assert alive(lapsed) == {1}
        assert watched.at(NOW + 7) is lapsed
        assert alive(watched.at(NOW + 11)) == set()

    def test_node_with_a_newer_heartbeat_is_serving_again(self) -> None:
        watched = Watched(*nodes(1), *nodes(2, sign=NOW - 60))
        assert alive(watched.at(NOW)) == {1}
        watched.read(*nodes(1, 2, sign=NOW + 1))
        assert alive(watched.at(NOW + 2)) == {1, 2}

    def test_silent_node_is_serving_until_watched_for_a_full_lease(self) -> None:
        watched = Watched(*nodes(1), *nodes(2, sign=NOW - 60))
        assert alive(watched.at(NOW)) == {1}
        assert alive(watched.at(NOW + 1, watching_since=NOW)) == {1, 2}
        assert alive(watched.at(NOW + 11, watching_since=NOW)) == set()
