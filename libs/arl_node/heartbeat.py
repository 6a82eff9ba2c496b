"""The lease of a node. A thread renews it, so that a busy event loop cannot lose it.

Before it registers, a node waits until its name is free.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg

from arl_node import repository
from arl_store.tx import PostgresStore

__all__ = ["LeaseHeartbeat", "wait_until_name_is_free"]

FENCE_AT_TTL_SHARE = 0.8
CONNECT_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)

_FENCED_MESSAGE = (
    "this node lost its lease: another node registered with its name, or it was removed. It starts no more actions."
    " Give each node a unique name (TANGRAM_NODE_NAME) and start this node again"
)


class LeaseHeartbeat:
    """The renewal of a node's lease. `can_start` returns False before another node can take the lease."""

    def __init__(self, url: str, *, name: str, node_id: int, epoch: UUID, beat_s: float, ttl_s: float) -> None:
        self._url = url
        self._name = name
        self._node_id = node_id
        self._epoch = epoch
        self._beat_s = beat_s
        self._ttl_s = ttl_s
        self._accepted_at = time.monotonic()
        self.lease_lapses = 0
        """Number of times that the lease lapsed and was renewed.

        Meanwhile the node's actions may have moved to other nodes.
        """
        self.fenced: str | None = None
        """Reason why this node starts nothing, while the lease belongs to another epoch."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for it, at most `CONNECT_TIMEOUT_S`."""
        self._stopping.set()
        self._thread.join(timeout=CONNECT_TIMEOUT_S)

    def can_start(self) -> bool:
        """Return True while the lease is safe.

        Time counts from the *sending* of the last accepted beat, by this node's monotonic clock.
        """
        return time.monotonic() - self._accepted_at < FENCE_AT_TTL_SHARE * self._ttl_s

    def _run(self) -> None:
        asyncio.run(self._renew_forever())

    async def _renew_forever(self) -> None:
        while not self._stopping.is_set():
            try:
                await self._renew_on_connection()
            except Exception as error:  # noqa: BLE001 - the heartbeat must survive any error
                log.warning("renewal of the lease failed: %s", type(error).__name__)
                self._stopping.wait(0.5)

    async def _renew_on_connection(self) -> None:
        connection = await asyncpg.connect(
            self._url,
            timeout=CONNECT_TIMEOUT_S,
            command_timeout=CONNECT_TIMEOUT_S,
            server_settings={"application_name": self._name, "synchronous_commit": "off"},
        )
        try:
            while not self._stopping.is_set():
                sent_at = time.monotonic()
                if await connection.execute(repository.RENEW_LEASE, self._node_id, self._epoch) == "UPDATE 1":
                    self.lease_lapses += sent_at - self._accepted_at >= FENCE_AT_TTL_SHARE * self._ttl_s
                    self._accepted_at = sent_at
                    self.fenced = None
                elif self.fenced is None:
                    self.fenced = _FENCED_MESSAGE
                    log.error("%s", _FENCED_MESSAGE)
                self._stopping.wait(self._beat_s)
        finally:
            connection.terminate()


async def wait_until_name_is_free(
    store: PostgresStore, node: Mapping[str, Any], *, ttl_s: float, check_interval_s: float
) -> None:
    """Return when no other node has a valid lease on this name. Raises `NodeNameTaken` if the other node still beats.

    A node with the same address or epoch is the same node, restarted.
    """
    seen: datetime | None = None
    while True:
        async with store.read() as tx:
            holder = await repository.other_name_holder(tx, node, ttl_s=ttl_s)
        if holder is None:
            return
        if seen is None:
            seen = holder.last_beat
            log.warning(
                "%s used the name %s until a moment ago; waiting until its lease expires", holder.url, node["name"]
            )
        elif holder.last_beat > seen:
            taken = repository.NodeNameTaken(node["name"], holder.url)
            log.critical("%s", taken)
            raise taken
        await asyncio.sleep(check_interval_s)
