"""What a poll shows to be lost: attempts on nodes that fell silent, and environments on nodes that stay away."""

from collections.abc import Iterable

from arl_core.reclaim import HeldRow, NodeLease, Verdict, reclaim
from arl_core.states import State
from arl_scheduler.index import Index
from arl_scheduler.rows import PollResult

__all__ = ["lost"]


def lost(
    index: Index, found: PollResult, *, watching_since: float, ttl_s: float, away_s: float
) -> tuple[tuple[Verdict, ...], list[int]]:
    """What becomes of held attempts, and the nodes whose environments are lost."""
    leases = {
        node.id: NodeLease(
            node=node.id,
            epoch=node.epoch,
            silent_s=found.now - max(node.last_sign, watching_since),
            drained=node.drained,
        )
        for node in found.nodes
    }
    verdicts = reclaim(_held_rows(index, found), leases, ttl_s=ttl_s)
    away = [
        node
        for node, lease in leases.items()
        if (lease.drained or lease.silent_s > away_s) and index.homes.live_on(node)
    ]
    return verdicts, away


def _held_rows(index: Index, found: PollResult) -> Iterable[HeldRow]:
    for row in found.held:
        name = (row.queue_id, row.trajectory) if row.trajectory is not None else None
        yield HeldRow(
            fence=row.fence,
            state=row.state,
            node=row.node,
            node_epoch=row.node_epoch,
            environment=row.environment,
            environment_live=index.homes.is_live(row.environment, name),
            environment_made=row.state is not State.GRANTED or index.homes.is_made(row.environment, name),
            failures=row.failures,
            retries=row.retries,
        )
