"""What becomes of attempts whose node is gone. A pure decision over one poll's rows."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from arl_core.fence import Fence
from arl_core.states import State

__all__ = ["HeldRow", "NodeLease", "Verdict", "reclaim"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLease:
    """`silent_s` counts only time in which a beat was possible and this leader was watching."""

    node: int
    epoch: UUID
    silent_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRow:
    fence: Fence
    state: State
    node: int
    node_epoch: UUID
    environment: UUID | None
    environment_live: bool
    """Whether its persistent environment is neither ended nor lost; True where it has none yet."""
    failures: int
    retries: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """`requeue` as a failure or not, or else settle as `infra_error` with this reason."""

    fence: Fence
    requeue: bool
    failed: bool
    reason: str


def reclaim(held: Iterable[HeldRow], leases: Mapping[int, NodeLease], *, ttl_s: float) -> tuple[Verdict, ...]:
    """Verdicts for held rows whose node lost its lease or came back as another.

    A lapsed lease loses grants, not environments: what runs in a persistent environment stays
    `running` until its node returns or the environment is lost. Run again in an empty environment
    it would be a false `user_error`.
    """
    verdicts = (_verdict(row, leases.get(row.node), ttl_s) for row in held)
    return tuple(verdict for verdict in verdicts if verdict is not None)


def _verdict(row: HeldRow, lease: NodeLease | None, ttl_s: float) -> Verdict | None:
    replaced = lease is None or lease.epoch != row.node_epoch
    lapsed = lease is None or lease.silent_s > ttl_s
    environment_gone = row.environment is not None and (replaced or not row.environment_live)
    if not replaced and not lapsed and not environment_gone:
        return None
    if row.state is State.GRANTED:
        if environment_gone and not row.environment_live:
            return Verdict(row.fence, requeue=False, failed=False, reason="environment_lost")
        return Verdict(row.fence, requeue=True, failed=False, reason="node_lost") if replaced or lapsed else None
    if row.environment is not None:
        if not environment_gone:
            return None
        return Verdict(row.fence, requeue=False, failed=True, reason="environment_lost")
    if not (replaced or lapsed):
        return None
    return Verdict(row.fence, requeue=row.failures < row.retries, failed=True, reason="node_lost")
