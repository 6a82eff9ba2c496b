"""Resizes of running actions. Freed resources are granted again only after the manager has confirmed the shrink.

A growth is written first and then sent to the manager. A shrink is confirmed by the manager first and then written. A
row therefore never shows less than its node uses. After a crash, the row and the manager's own poll repair a growth.
`begin` repairs a shrink: it asks every manager for the amounts of its actions.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence

from arl_core.domain.model import Fence, ResizeDecision, Resources
from arl_kit.service_client import ServiceClient
from arl_kit.service_tokens import node_audience
from arl_scheduler.index.allocations import Allocation, AllocationTable
from arl_scheduler.leader.notification_inbox import NotificationInbox
from arl_scheduler.queries.poll_result import NodeRow, ResizeUpdate
from arl_wire.internal.node import ResizeBatchRequest, ResizeBatchResponse, ResizePayload, ResizeResult

__all__ = ["ResizeCoordinator"]

CORES = "cpu_milli"

log = logging.getLogger(__name__)


class ResizeCoordinator:
    """A coordinator with at most one resize of an action in progress. It never waits: answers arrive in the inbox."""

    def __init__(self, peers: ServiceClient, mailbox: NotificationInbox) -> None:
        self._peers = peers
        self._mailbox = mailbox
        self._unconfirmed: set[Fence] = set()
        """Fences for which the manager's amounts are unknown."""
        self._deferred: set[Fence] = set()
        """Fences whose manager could not resize now. They are skipped until the next poll, to avoid endless requests.
        """
        self._requests: set[asyncio.Task[None]] = set()

    def begin(self, allocations: AllocationTable) -> None:
        """Treat all resizable allocations as unconfirmed, because an earlier leader's requests are unknown."""
        self._unconfirmed = {hold.fence for hold in allocations.resizable()}

    async def stop(self) -> None:
        """Cancel the requests in flight."""
        for task in tuple(self._requests):
            task.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)

    def growths(self, allocations: AllocationTable, decided: Iterable[ResizeDecision]) -> list[ResizeUpdate]:
        """Return the growths among the decisions, to be written before the manager is notified."""
        return [new for new, hold in _new_resizes(allocations, decided) if new.resources[CORES] > hold.resources[CORES]]

    def shrinks(self, allocations: AllocationTable, decided: Iterable[ResizeDecision]) -> list[ResizeUpdate]:
        """Return the shrinks among the decisions, to be confirmed before they are written."""
        return [new for new, hold in _new_resizes(allocations, decided) if new.resources[CORES] < hold.resources[CORES]]

    def send(self, allocations: AllocationTable, nodes: dict[int, NodeRow], changes: Iterable[ResizeUpdate]) -> None:
        """Send the resizes to the managers, one request each."""
        by_node: dict[int, list[ResizePayload]] = defaultdict(list)
        for change in changes:
            hold = allocations.get_by_fence(change.fence)
            if hold is None:
                continue
            allocations.set_resizing(change.fence, change.resources)
            if hold.node in nodes:
                by_node[hold.node].append(_to_request(change.fence, change.resources, change.seq))
            else:
                self._unconfirmed.add(change.fence)
        for node, bodies in by_node.items():
            task = asyncio.create_task(self._send_to_node(nodes[node], bodies), name="resize")
            self._requests.add(task)
            task.add_done_callback(self._requests.discard)

    def retry_unconfirmed(self, allocations: AllocationTable, nodes: dict[int, NodeRow]) -> None:
        """Ask again for resizes without an answer."""
        for fence in self._deferred:
            allocations.set_resizing(fence, None)
        self._deferred.clear()
        unsure, self._unconfirmed = self._unconfirmed, set()
        known = [hold for fence in sorted(unsure) if (hold := allocations.get_by_fence(fence)) is not None]
        self.send(allocations, nodes, [ResizeUpdate(hold.fence, hold.resources, hold.resize_seq) for hold in known])

    def process_responses(
        self, allocations: AllocationTable, responses: Iterable[ResizeResult]
    ) -> tuple[list[ResizeUpdate], list[ResizeUpdate]]:
        """Return the resizes to write, and those to request. A growth that found no room is reverted.

        An answer is valid until the manager gets a resize with a higher number. Of two answers, the one with the higher
        number is later.
        """
        written: list[ResizeUpdate] = []
        asked: list[ResizeUpdate] = []
        for answer in responses:
            fence = Fence(answer.id, answer.grant_no)
            hold = allocations.get_by_fence(fence)
            if hold is not None and answer.status in ("absent", "full"):
                self._deferred.add(fence)
            else:
                allocations.set_resizing(fence, None)
            if hold is None or answer.cpu_milli is None or answer.amounts_seq is None:
                continue
            amounts = {**hold.resources, CORES: answer.cpu_milli}
            if answer.status == "full":
                asked.append(ResizeUpdate(fence, amounts, hold.resize_seq + 1))
            elif _is_newer(answer, hold):
                written.append(ResizeUpdate(fence, amounts, answer.amounts_seq))
        return written, asked

    def mark_unconfirmed(self, fences: Iterable[Fence]) -> None:
        """Mark resizes whose managers may not have received them. They are asked again after the next poll."""
        self._unconfirmed.update(fences)

    async def _send_to_node(self, node: NodeRow, bodies: Sequence[ResizePayload]) -> None:
        try:
            content = await self._peers.call(
                f"{node.url}/internal/resizes",
                ResizeBatchRequest(node_epoch=node.epoch, resizes=list(bodies)),
                audience=node_audience(node.name, node.credential_id),
            )
            self._mailbox.resized(ResizeBatchResponse.model_validate_json(content).answers)
        except Exception as error:  # noqa: BLE001 - the manager is asked again after any error
            log.warning("node %d does not answer resize requests: %r", node.id, error)
            self._mailbox.unanswered(Fence(body.id, body.grant_no) for body in bodies)


def _is_newer(response: ResizeResult, allocation: Allocation) -> bool:
    """Return True if the response differs from the row, with at least its resize number and at most its cores."""
    had, has = (
        (allocation.resize_seq, allocation.resources[CORES]),
        (response.amounts_seq or 0, response.cpu_milli or 0),
    )
    return has != had and has[0] >= had[0] and has[1] <= had[1]


def _new_resizes(
    allocations: AllocationTable, decided: Iterable[ResizeDecision]
) -> Iterable[tuple[ResizeUpdate, Allocation]]:
    for resize in decided:
        hold = allocations.get_by_fence(resize.fence)
        if hold is not None and not allocations.is_resizing(hold):
            yield ResizeUpdate(resize.fence, resize.resources, hold.resize_seq + 1), hold


def _to_request(fence: Fence, resources: Resources, seq: int) -> ResizePayload:
    return ResizePayload(id=fence.action_id, grant_no=fence.grant_no, cpu_milli=resources[CORES], amounts_seq=seq)
