"""What the leader tells managers; any of it may be lost, their polls read the same from rows."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from arl_core.model import Grant
from arl_kit.peers import Peers
from arl_scheduler.rows import NodeRow, PollResult
from arl_wire.internal import GrantBatch, GrantBody

__all__ = ["hint_ends", "hint_grants"]


def hint_grants(peers: Peers, nodes: Mapping[int, NodeRow], grants: Iterable[Grant]) -> None:
    """One request for each node."""
    by_node: dict[int, list[GrantBody]] = defaultdict(list)
    for grant in grants:
        by_node[grant.node].append(
            GrantBody(
                id=grant.fence.action_id,
                grant_no=grant.fence.grant_no,
                amounts=dict(grant.amounts),
                environment_id=grant.environment,
            )
        )
    for node_id, bodies in by_node.items():
        node = nodes[node_id]
        peers.hint(f"{node.url}/internal/grants", GrantBatch(node_epoch=node.epoch, grants=bodies))


def hint_ends(peers: Peers, nodes: Mapping[int, NodeRow], found: PollResult) -> None:
    """Environments whose end was wished since the last poll: their nodes free them at once."""
    for node_id in {row.node for row in found.environments if row.deleted and not row.gone} & nodes.keys():
        node = nodes[node_id]
        peers.hint(f"{node.url}/internal/grants", GrantBatch(node_epoch=node.epoch, grants=[]))
