"""The write of a round: its grants and growths in one commit."""

from collections.abc import Sequence

from arl_core.domain.model import Fence, Grant
from arl_kit.failpoints import Failpoints
from arl_scheduler.index.scheduler_index import SchedulerIndex
from arl_scheduler.leader.election import LeaderElection
from arl_scheduler.metrics import SchedulerMetrics
from arl_scheduler.queries import leader_queries, repository
from arl_scheduler.queries.leader_queries import TermLostError
from arl_scheduler.queries.poll_result import ResizeUpdate
from arl_store.tx import PostgresStore

__all__ = ["RoundWriter"]


class RoundWriter:
    """A writer of decisions. Every commit locks the leader's term."""

    def __init__(
        self, store: PostgresStore, election: LeaderElection, failpoints: Failpoints, metrics: SchedulerMetrics
    ) -> None:
        self._store = store
        self._election = election
        self._failpoints = failpoints
        self._metrics = metrics

    async def write(
        self,
        index: SchedulerIndex,
        grants: Sequence[Grant],
        growths: Sequence[ResizeUpdate],
        critical: frozenset[Fence],
    ) -> tuple[frozenset[Fence], frozenset[Fence]]:
        """Write grants and growths in one commit. Return the fences of those that succeeded.

        `critical` has the grants of critical trajectories. Raises `TermLostError` if another scheduler leads.
        """
        granted: frozenset[Fence] = frozenset()
        grown: frozenset[Fence] = frozenset()
        if not grants and not growths:
            return granted, grown
        if self._election.term is None:
            raise TermLostError
        epochs = {node.id: node.epoch for node in index.nodes.values()}
        self._failpoints.hit("leader.between_decision_and_lock")
        async with self._store.write() as tx:
            await leader_queries.lock_term(tx, cell=self._election.cell, term=self._election.term)
            self._failpoints.hit("leader.between_lock_and_update")
            if grants:
                granted = await repository.grant(tx, grants, epochs=epochs, critical=critical)
            if growths:
                grown = await repository.resize(tx, growths, confirmed=False)
        self._failpoints.hit("scheduler.after_grant_commit")
        if grown:
            self._failpoints.hit("scheduler.after_growth_commit")
        self._metrics.grants.inc(len(granted))
        self._metrics.critical_grants.inc(len(granted & critical))
        return granted, grown
