"""A broker in this process, for an endpoint that the test controls."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from arl_api.manager import ApiManager
from arl_api.settings import ApiSettings
from arl_store.logins import role_url
from arl_store.wake import WakeNotifier
from arl_wire.internal.node import GrantPayload
from support.endpoint import External
from support.peers import RecordingPeers
from support.postgres import PASSWORDS, SPOOL_DIR
from support.rows import Rows, store_of

__all__ = ["CALL", "Broker", "brokering"]

CALL = {"calls:e": 1}
REQUEST = {
    "endpoint": "e",
    "method": "GET",
    "path": "",
    "query": {},
    "raw_query": "",
    "headers": {},
    "body": "",
    "idempotent": False,
}


@dataclass(frozen=True)
class Broker:
    manager: ApiManager
    there: External
    peers: RecordingPeers
    rows: Rows

    async def granted(self, *, request: dict[str, Any] | None = None, **columns: Any) -> UUID:
        """Insert a call granted to this node, without a notification; a poll may find it at any time."""
        held = {"state": "granted", "node_id": self.manager.node_id, "node_epoch": self.manager.epoch}
        spec = {"kind": "call", "amounts": CALL, "payload": REQUEST | (request or {})}
        return await self.rows.action(**(spec | held | columns))

    async def offer(self, *actions: UUID) -> None:
        bodies = [GrantPayload(id=action, grant_no=1, amounts=CALL) for action in actions]
        await self.manager.accept_grants(bodies, epoch=self.manager.epoch)

    async def end(self, action: UUID) -> tuple[str, str | None, str | None]:
        """Return the action's state, outcome and reason."""
        row = await self.rows.pool.fetchrow("select state, outcome, reason from actions where id = $1", action)
        return tuple(row)


@asynccontextmanager
async def brokering(
    rows: Rows, there: External, *, grace_s: float = 5.0, spool_dir: Path = SPOOL_DIR, **endpoint: Any
) -> AsyncIterator[Broker]:
    """Run a broker that polls often, so that tests of a poll are fast."""
    url = role_url(rows.owner_url, "api", PASSWORDS["api"])
    settings = ApiSettings(
        port=1,
        database_url=url,
        service_token="t" * 16,
        scheduler_url="http://scheduler",
        node_name="b",
        endpoints={"e": {"url": there.url, **endpoint}},
        poll_busy_s=0.03,
        poll_idle_s=0.03,
        grace_s=grace_s,
        spool_dir=spool_dir,
    )
    peers = RecordingPeers()
    async with store_of(rows.owner_url, "api") as store:
        manager = ApiManager(store, peers, WakeNotifier(url, name="api"), settings)  # type: ignore[arg-type]
        await manager.start()
        try:
            yield Broker(manager, there, peers, rows)
        finally:
            await manager.stop()
