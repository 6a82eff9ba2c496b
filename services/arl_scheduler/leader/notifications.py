"""What the leader tells managers; any of it may be lost, their polls read the same from rows."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from arl_core.domain.model import Grant
from arl_kit.service_client import ServiceClient
from arl_scheduler.queries.poll_result import NodeRow, PollResult
from arl_wire.internal.node import GrantBatchRequest, GrantPayload

__all__ = ["notify_environment_ends", "notify_grants"]


def notify_grants(peers: ServiceClient, nodes: Mapping[int, NodeRow], grants: Iterable[Grant]) -> None:
    """One request for each node."""
    by_node: dict[int, list[GrantPayload]] = defaultdict(list)
    for grant in grants:
        by_node[grant.node].append(
            GrantPayload(
                id=grant.fence.action_id,
                grant_no=grant.fence.grant_no,
                amounts=dict(grant.resources),
                environment_id=grant.environment,
            )
        )
    for node_id, bodies in by_node.items():
        node = nodes[node_id]
        peers.notify(f"{node.url}/internal/grants", GrantBatchRequest(node_epoch=node.epoch, grants=bodies))


def notify_environment_ends(peers: ServiceClient, nodes: Mapping[int, NodeRow], poll: PollResult) -> None:
    """Environments whose end was wished since the last poll: their nodes free them at once."""
    for node_id in {
        row.node for row in poll.environments if row.is_delete_requested and not row.is_ended
    } & nodes.keys():
        node = nodes[node_id]
        peers.notify(f"{node.url}/internal/grants", GrantBatchRequest(node_epoch=node.epoch, grants=[]))
