"""A CPU manager in this process, with an executor that the test controls."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from arl_core.domain.model import Fence
from arl_cpu.node.manager import CpuManager
from arl_cpu.settings import CpuSettings
from arl_store.logins import role_url
from arl_store.wake import WakeNotifier
from arl_wire.internal.node import GrantPayload
from support.builders import EPOCH
from support.executor import FakeExecutor
from support.peers import RecordingPeers
from support.postgres import PASSWORDS, SPOOL_DIR
from support.rows import AMOUNTS, Rows, store_of

__all__ = ["Cpu", "managing"]

NODE_NAME = "n"


@dataclass(frozen=True)
class Cpu:
    manager: CpuManager
    executor: FakeExecutor
    peers: RecordingPeers
    rows: Rows

    async def granted(self, **columns: Any) -> UUID:
        """Insert an action granted to this node, without a notification."""
        held = {"state": "granted", "node_id": self.manager.node_id, "node_epoch": self.manager.epoch}
        return await self.rows.action(**(held | columns))

    async def offer(self, *actions: UUID, **changed: Any) -> None:
        """Send the grant notification for the current rows of the actions."""
        bodies = []
        for action in actions:
            row = await self.rows.of(action)
            amounts = json.loads(row["amounts"]) if row["amounts"] else AMOUNTS
            body = {"id": action, "grant_no": row["grant_no"], "amounts": amounts}
            bodies.append(GrantPayload(**(body | {"environment_id": row["environment_id"]} | changed)))
        await self.manager.accept_grants(bodies, epoch=self.manager.epoch)

    async def running(self, **columns: Any) -> Fence:
        """Start an action and return its fence once the executor runs it."""
        await self.offer(await self.granted(**columns))
        return (await self.executor.next_start()).fence


@asynccontextmanager
async def managing(rows: Rows, executor: FakeExecutor | None = None, **changed: Any) -> AsyncIterator[Cpu]:
    """Run a manager with two cores and 1000 MiB that polls often, so that tests of a poll are fast."""
    url = role_url(rows.owner_url, "cpu", PASSWORDS["cpu"])
    values: dict[str, Any] = {
        "port": 1,
        "database_url": url,
        "service_token": "t" * 16,
        "scheduler_url": "http://scheduler",
        "node_name": NODE_NAME,
        "driver": "simulated",
        "cpu_cores": 2,
        "memory_mib": 1000,
        "spool_dir": SPOOL_DIR,
        "poll_busy_s": 0.03,
        "poll_idle_s": 0.03,
    }
    settings = CpuSettings(**(values | changed))
    executor = executor or FakeExecutor(EPOCH)
    peers = RecordingPeers()
    async with store_of(rows.owner_url, "cpu") as store:
        manager = CpuManager(store, peers, WakeNotifier(url, name="cpu"), executor, settings)  # type: ignore[arg-type]
        await manager.start()
        try:
            yield Cpu(manager, executor, peers, rows)
        finally:
            await manager.stop()
