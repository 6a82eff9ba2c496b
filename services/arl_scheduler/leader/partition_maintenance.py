"""Partitions of the tables of actions, created some days ahead."""

import logging
import time

from arl_scheduler.queries import repository
from arl_store.tx import PostgresStore, is_temporary

__all__ = ["PartitionMaintenance"]

PARTITION_INTERVAL_S = 6 * 3600
PARTITION_RETRY_S = 300
"""Seconds before a retry, if another session had the tables locked, for example a backup."""
PARTITION_DAYS_AHEAD = 7

log = logging.getLogger(__name__)


class PartitionMaintenance:
    """Creator of partitions, active when the leader starts and every few hours."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._attempted_at = float("-inf")

    async def ensure_if_due(self) -> bool:
        """Create missing partitions if the last attempt is long ago. Return True if it was.

        If the tables are locked, the next attempt comes sooner.
        """
        if time.monotonic() - self._attempted_at < PARTITION_INTERVAL_S:
            return False
        self._attempted_at = time.monotonic()
        try:
            async with self._store.write() as tx:
                await repository.ensure_partitions(tx, days=PARTITION_DAYS_AHEAD + 1)
        except Exception as error:
            if not is_temporary(error):
                raise
            self._attempted_at += PARTITION_RETRY_S - PARTITION_INTERVAL_S
            log.info("partitions could not be created, trying again later: %s", error)
        return True
