"""Notifications that the leader receives and sends. All are best effort: polls read the same from rows.

Only changes of critical trajectories are in no row. A lost one makes an action slower or faster until it ends.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field

from arl_core.domain.model import Fence, Grant
from arl_kit.service_client import ServiceClient
from arl_kit.service_tokens import node_audience
from arl_scheduler.index.allocations import Allocation
from arl_scheduler.queries.estimate_queries import RunDuration
from arl_scheduler.queries.poll_result import NodeRow, PollResult
from arl_wire.internal.node import (
    CriticalChangeBatchRequest,
    CriticalChangePayload,
    GrantBatchRequest,
    GrantPayload,
    ResizeResult,
)
from arl_wire.internal.scheduler import EndedTrajectory, QueuedActionRow

__all__ = [
    "NotificationInbox",
    "PendingNotifications",
    "notify_changed_rows",
    "notify_critical",
    "notify_environment_ends",
    "notify_grants",
]


@dataclass(slots=True)
class PendingNotifications:
    """The notifications since the last round."""

    admitted: list[QueuedActionRow] = field(default_factory=list)
    ended: list[EndedTrajectory] = field(default_factory=list)
    freed: list[Fence] = field(default_factory=list)
    requeued: set[Fence] = field(default_factory=set)
    runs: dict[Fence, RunDuration] = field(default_factory=dict)
    resized: list[ResizeResult] = field(default_factory=list)
    unanswered: list[Fence] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.admitted or self.freed)


class NotificationInbox:
    """The inbox that requests fill and the leader's loop empties."""

    def __init__(self) -> None:
        self._pending = PendingNotifications()
        self._wakeup = asyncio.Event()
        self.is_poll_requested = False
        """True if rows changed that only a poll started from now on is certain to read."""

    def admitted(self, rows: Iterable[QueuedActionRow], *, ended: Iterable[EndedTrajectory] = ()) -> None:
        """Receive admitted rows. An empty list means that a request was recorded, and asks for a poll soon."""
        rows = list(rows)
        if not rows:
            self.is_poll_requested = True
        self._pending.admitted.extend(rows)
        self._pending.ended.extend(ended)
        self._wakeup.set()

    def freed(
        self,
        fences: Iterable[Fence],
        *,
        requeued: Iterable[Fence] = (),
        runs: Mapping[Fence, RunDuration] | None = None,
    ) -> None:
        """Receive freed fences.

        An empty list means that environments ended or a node registered, and asks for a poll soon. Re-queued attempts
        wait for the regular poll. A node that refuses grants is then asked only once a second.
        """
        fences = list(fences)
        if not fences:
            self.is_poll_requested = True
        self._pending.freed.extend(fences)
        self._pending.requeued.update(requeued)
        self._pending.runs.update(runs or {})
        self._wakeup.set()

    def resized(self, responses: Iterable[ResizeResult]) -> None:
        """Receive managers' answers to resizes."""
        self._pending.resized.extend(responses)
        self._wakeup.set()

    def unanswered(self, fences: Iterable[Fence]) -> None:
        """Receive the fences of resizes without an answer."""
        self._pending.unanswered.extend(fences)
        self._wakeup.set()

    def drain(self) -> PendingNotifications:
        """Return all notifications since the last call."""
        self._wakeup.clear()
        mail, self._pending = self._pending, PendingNotifications()
        return mail

    async def wait(self) -> None:
        """Wait until a notification arrives."""
        await self._wakeup.wait()


def notify_grants(
    peers: ServiceClient,
    nodes: Mapping[int, NodeRow],
    grants: Iterable[Grant],
    expected_cpu_s: Callable[[Fence], float | None],
    *,
    critical: Set[Fence] = frozenset(),
) -> None:
    """Notify the managers of grants, with one request per node.

    `expected_cpu_s` returns the CPU-seconds that an action with shared cores is expected to use, else None.
    `critical` has the grants of critical trajectories.
    """
    by_node: dict[int, list[GrantPayload]] = defaultdict(list)
    for grant in grants:
        by_node[grant.node].append(
            GrantPayload(
                id=grant.fence.action_id,
                grant_no=grant.fence.grant_no,
                amounts=dict(grant.resources),
                environment_id=grant.environment,
                expected_cpu_s=expected_cpu_s(grant.fence),
                is_critical=grant.fence in critical,
            )
        )
    for node_id, bodies in by_node.items():
        _notify_node(peers, nodes[node_id], bodies)


def notify_critical(
    peers: ServiceClient, nodes: Mapping[int, NodeRow], changes: Iterable[tuple[Allocation, bool]]
) -> None:
    """Notify the managers of running actions whose trajectories became critical, or are no longer critical."""
    by_node: dict[int, list[CriticalChangePayload]] = defaultdict(list)
    for allocation, is_critical in changes:
        fence = allocation.fence
        by_node[allocation.node].append(
            CriticalChangePayload(id=fence.action_id, grant_no=fence.grant_no, is_critical=is_critical)
        )
    for node in (nodes[node_id] for node_id in by_node.keys() & nodes.keys()):
        body = CriticalChangeBatchRequest(node_epoch=node.epoch, changes=by_node[node.id])
        peers.notify(f"{node.url}/internal/critical", body, audience=node_audience(node.name, node.credential_id))


def notify_environment_ends(peers: ServiceClient, nodes: Mapping[int, NodeRow], poll: PollResult) -> None:
    """Notify the nodes of environments whose deletion was requested since the last poll, so that they end soon."""
    changed = {row.node for row in poll.environments if row.is_delete_requested and not row.is_ended}
    notify_changed_rows(peers, nodes, changed)


def notify_changed_rows(peers: ServiceClient, nodes: Mapping[int, NodeRow], changed: Set[int]) -> None:
    """Notify nodes of rows that only their poll reads, so that they poll at once."""
    for node_id in changed & nodes.keys():
        _notify_node(peers, nodes[node_id], [])


def _notify_node(peers: ServiceClient, node: NodeRow, grants: list[GrantPayload]) -> None:
    body = GrantBatchRequest(node_epoch=node.epoch, grants=grants)
    peers.notify(f"{node.url}/internal/grants", body, audience=node_audience(node.name, node.credential_id))
