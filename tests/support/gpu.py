"""A GPU manager in this process, with a device that the test controls."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from arl_gpu.catalog.service_files import ServiceFiles
from arl_gpu.dispatch.device_slot import DeviceWorker
from arl_gpu.models.interface import Item
from arl_gpu.node.manager import GpuManager
from arl_gpu.settings import GpuSettings
from arl_gpu.worker.client import WorkerDied
from arl_store.logins import role_url
from arl_store.wake import WakeNotifier
from arl_wire.internal.node import GrantPayload
from support.conditions import eventually
from support.peers import RecordingPeers
from support.postgres import PASSWORDS, SPOOL_DIR
from support.rows import Rows, store_of

__all__ = ["SLOT", "SLOTS", "Gpu", "ScriptedWorker", "driving", "scored"]

SLOT = {"slots:minilm": 1}
SLOTS = 4
MOVES = {"restored_s": [], "evicted": 0, "prefetched": 0, "failed": 0, "cooled": 0}
NOTHING = {"states": {}, "used_bytes": 0, "moves": MOVES, "fitting": []}
Items = Sequence[Item]


class ScriptedWorker:
    """A fake `DeviceWorker`. A score is the length of its text; batches end only when the test ends them."""

    host = None

    def __init__(self) -> None:
        self.offered: list[dict[str, Any]] = []
        self.dies_of_offers = False
        self.may_offer = asyncio.Event()
        self.may_offer.set()
        self.may_restore = asyncio.Event()
        self.may_restore.set()
        self._orders: asyncio.Queue[tuple[Items, asyncio.Future[dict[str, Any]]]] = asyncio.Queue()

    async def next_order(self) -> "tuple[Items, asyncio.Future[dict[str, Any]]]":
        return await asyncio.wait_for(self._orders.get(), 5)

    async def answer_next(self) -> Items:
        items, answer = await self.next_order()
        answer.set_result(scored(items))
        return items

    async def score(self, service: str, items: Items, waiting: Sequence[str] = ()) -> dict[str, Any]:
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._orders.put_nowait((items, answer))
        return await answer

    async def offer(self, spec: dict[str, Any]) -> dict[str, Any]:
        self.offered.append(spec)
        await self.may_offer.wait()
        if self.dies_of_offers:
            raise WorkerDied("killed by the test")
        return NOTHING

    async def forget(self, name: str) -> dict[str, Any]:
        return NOTHING

    async def restore(self, name: str) -> dict[str, Any]:
        """Restore like an engine that wakes up: it answers other orders during the restore."""
        await self.may_restore.wait()
        return NOTHING

    async def end(self) -> None:
        pass


def scored(items: Items) -> dict[str, Any]:
    return {
        "entries": [{"score": float(len(item["text"])), "truncated": False} for item in items],
        "texts": len(items),
        "tokens": len(items),
        "padding": 0.0,
        "forward_s": 0.001,
        "forward_cpu_s": 0.001,
        "model_cpu_s": 0.001,
        "model_s": 0.001,
        "restore_s": None,
        "states": {"minilm": "resident"},
        "used_bytes": 1,
        "moves": MOVES,
        "fitting": [],
    }


@dataclass(frozen=True)
class Gpu:
    manager: GpuManager
    worker: ScriptedWorker
    peers: RecordingPeers
    rows: Rows

    async def granted(self, *texts: str, **columns: Any) -> UUID:
        """Insert a score granted to this node, without a notification; a poll may find it at any time."""
        held = {"state": "granted", "node_id": self.manager.node_id, "node_epoch": self.manager.epoch}
        items = [{"text": text, "reference": "r"} for text in texts]
        spec = {"kind": "score", "amounts": SLOT, "payload": {"service": "minilm", "items": items}}
        return await self.rows.action(**(spec | held | columns))

    async def scoring(self, jobs: int) -> None:
        """Wait until the manager has this many jobs; a row may become `running` before that."""
        await eventually(lambda: self.manager.dispatcher.job_count == jobs)

    async def offer(self, *actions: UUID) -> None:
        bodies = [GrantPayload(id=action, grant_no=1, amounts=SLOT) for action in actions]
        await self.manager.accept_grants(bodies, epoch=self.manager.epoch)

    async def scores(self, action: UUID) -> list[float]:
        found = await self.rows.value("select scores::text from action_results where id = $1", action)
        return [entry["score"] for entry in json.loads(found)]


@asynccontextmanager
async def driving(rows: Rows, *, workers: Sequence[DeviceWorker] = (), **changed: Any) -> AsyncIterator[Gpu]:
    """Run a manager with four slots that polls often; `workers` replace the scripted worker."""
    url = role_url(rows.owner_url, "gpu", PASSWORDS["gpu"])
    values: dict[str, Any] = {
        "port": 1,
        "database_url": url,
        "service_token": "t" * 16,
        "scheduler_url": "http://scheduler",
        "node_name": "g",
        "slots": SLOTS,
        "spool_dir": SPOOL_DIR,
        "poll_busy_s": 0.03,
        "poll_idle_s": 0.03,
    }
    settings = GpuSettings(**(values | changed))
    files = [ServiceFiles(name="minilm", kind="similarity", package="p", directory=Path("/none"), max_tokens=256)]
    worker, peers = ScriptedWorker(), RecordingPeers()
    async with store_of(rows.owner_url, "gpu") as store:
        notifier = WakeNotifier(url, name="gpu")
        manager = GpuManager(store, peers, notifier, workers or [worker], files, settings)  # type: ignore[list-item]
        await manager.start()
        try:
            yield Gpu(manager, worker, peers, rows)
        finally:
            manager.dispatcher.cancel(manager.fences)
            await manager.stop()
