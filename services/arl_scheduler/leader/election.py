"""Leader election and the database's clock. `leader_term` fences writes; after the lease expires, another may lead."""

import logging
import time
from uuid import UUID, uuid4

from arl_scheduler.queries import leader_queries
from arl_store.tx import PostgresStore

__all__ = ["DatabaseClock", "LeaderElection"]

log = logging.getLogger(__name__)

ONLY_CELL = "default"
"""Key of the leader's rows. A database has one cell. The key is not its number, so that a change of the number cannot
make a second leader.
"""


class LeaderElection:
    """An election with at most one holder of the current term. `term` is None while another scheduler leads."""

    def __init__(self, store: PostgresStore, *, cell: str = ONLY_CELL, ttl_s: float) -> None:
        self._store = store
        self._cell = cell
        self._ttl_s = ttl_s
        self._holder: UUID = uuid4()
        self._renewed_at = float("-inf")
        self._ensured = False
        self.term: int | None = None

    @property
    def cell(self) -> str:
        """Return the name of the cell."""
        return self._cell

    async def acquire(self) -> bool:
        """Take over if the lease has expired. Waits for the old leader's transaction in flight, if any."""
        sent_at = time.monotonic()
        async with self._store.write() as tx:
            if not self._ensured:
                await leader_queries.ensure_cell(tx, cell=self._cell)
            term = await leader_queries.acquire_term(tx, cell=self._cell, holder=self._holder, ttl_s=self._ttl_s)
        self._ensured = True
        if term is None:
            return False
        self.term, self._renewed_at = term, sent_at
        log.info("now leading cell %s in term %d", self._cell, term)
        return True

    async def renew_if_due(self) -> bool:
        """Extend the lease after half of its time. Return False if the term is lost."""
        if self.term is None:
            return False
        sent_at = time.monotonic()
        if sent_at - self._renewed_at < self._ttl_s / 2:
            return True
        async with self._store.statement() as tx:
            kept = await leader_queries.renew_lease(tx, cell=self._cell, term=self.term, ttl_s=self._ttl_s)
        if kept:
            self._renewed_at = sent_at
        else:
            self.mark_lost()
        return kept

    def mark_lost(self) -> None:
        """Give up the term, because its lease may have expired."""
        log.warning("lost the leadership of cell %s in term %s", self._cell, self.term)
        self.term = None

    async def resign(self) -> None:
        """Release the lease so that a standby takes over at once."""
        if self.term is None:
            return
        async with self._store.write() as tx:
            await leader_queries.resign(tx, cell=self._cell, term=self.term)
        self.term = None


class DatabaseClock:
    """An estimate of the database's clock. It never goes back, even if a poll's answer was delayed."""

    def __init__(self) -> None:
        self._offset_s = 0.0
        self._latest = 0.0

    def set(self, now: float) -> None:
        """Set the current time of the database."""
        self._offset_s = now - time.monotonic()

    def now(self) -> float:
        """Return the estimated time of the database, in seconds since the epoch."""
        self._latest = max(self._latest, time.monotonic() + self._offset_s)
        return self._latest
