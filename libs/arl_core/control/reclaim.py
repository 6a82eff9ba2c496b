"""Recovery of attempts on lost nodes; a pure decision over the rows of one poll."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from arl_core.domain.model import Fence
from arl_core.domain.states import ActionState

__all__ = ["ActiveAttempt", "NodeLease", "ReclaimDecision", "reclaim"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLease:
    """The lease of a node.

    `silent_s` counts only time in which a heartbeat was possible and this leader was watching.
    """

    node: int
    epoch: UUID
    silent_s: float
    is_drain_expired: bool = False
    """True if the drain deadline of the node has passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveAttempt:
    """A granted or running attempt, as one poll read it."""

    fence: Fence
    state: ActionState
    node: int
    node_epoch: UUID
    environment: UUID | None
    environment_live: bool
    """True if the persistent environment is neither ended nor lost, or if the action has none yet."""
    environment_made: bool = True
    """False if the environment is known to have no row yet, so nothing in it can be lost."""
    failures: int
    retries: int


@dataclass(frozen=True, slots=True)
class ReclaimDecision:
    """A decision on one attempt: re-queue it, as a failure or not, or settle it as `infra_error` with this reason."""

    fence: Fence
    state: ActionState
    """State of the attempt at the time of the decision."""
    requeue: bool
    is_failure: bool
    reason: str


def reclaim(
    attempts: Iterable[ActiveAttempt], leases: Mapping[int, NodeLease], *, ttl_s: float
) -> tuple[ReclaimDecision, ...]:
    """Return decisions for attempts whose node lost its lease, changed its epoch or passed its drain deadline.

    An expired lease loses grants, not environments. An action in a persistent environment stays `running` until its
    node returns or the environment is lost. Re-running it in an empty environment would produce a false `user_error`.
    """
    verdicts = (_decide(row, leases.get(row.node), ttl_s) for row in attempts)
    return tuple(verdict for verdict in verdicts if verdict is not None)


def _decide(row: ActiveAttempt, lease: NodeLease | None, ttl_s: float) -> ReclaimDecision | None:
    replaced = lease is None or lease.epoch != row.node_epoch
    lapsed = lease is None or lease.silent_s > ttl_s
    drained = lease is not None and lease.is_drain_expired
    environment_live = row.environment_live and not drained
    environment_gone = row.environment is not None and (replaced or not environment_live)
    over = replaced or lapsed or drained
    if not over and not environment_gone:
        return None
    reason = "node_drained" if drained and not replaced and not lapsed else "node_lost"
    if row.state is ActionState.GRANTED:
        if environment_gone and not environment_live and row.environment_made:
            return ReclaimDecision(row.fence, row.state, requeue=False, is_failure=False, reason="environment_lost")
        return ReclaimDecision(row.fence, row.state, requeue=True, is_failure=False, reason=reason) if over else None
    if row.environment is not None:
        if not environment_gone:
            return None
        return ReclaimDecision(row.fence, row.state, requeue=False, is_failure=True, reason="environment_lost")
    if not over:
        return None
    return ReclaimDecision(row.fence, row.state, requeue=row.failures < row.retries, is_failure=True, reason=reason)
